// The outside judge of whole texts: llama.cpp, by node-llama-cpp 3.21.1.
//   node greedy.mjs MODEL.gguf > greedy-NAME.json      ten prompts, 64 greedy tokens each
//   node greedy.mjs MODEL.gguf --ids > ids-NAME.txt    64 ids of a fixed text, for reference.py
// Beside each token: how far, in logits, the second best was behind (equal to the distance
// of their log probabilities).
import {getLlama} from "node-llama-cpp";

const prompts = [
    "The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n",
    "The three laws of thermodynamics are", "Dear Sir or Madam,\n\nI am writing to", "Water boils at a temperature of",
    "In 1969, the first humans", "Recipe for a simple tomato soup:\n1.", "The main difference between a virus and a bacterium is",
    "Q: What is the largest planet in the solar system?\nA:"];
const text = "The lighthouse keeper wrote every evening in a heavy book: the weather, the ships that passed, and the colour of " +
    "the sea. In 1883 a storm took the lower stairs, and for eleven days nobody could reach him. When the boat came at last, " +
    "he had filled forty pages, most of them about birds, and asked only for more ink and a better lamp.";

const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2]});
const bos = model.tokens.shouldPrependBosToken ? [model.tokens.bos] : [];
const ids_of = (s) => [...bos, ...model._model.tokenize(s, false)];
if (process.argv[3] === "--ids") {
    console.log(ids_of(text).slice(0, 64).join(" "));
    process.exit(0);
}
const context = await model.createContext({contextSize: 512, threads: 2, flashAttention: false});
const sequence = context.getSequence();
const runs = [];
for (const prompt of prompts) {
    await sequence.clearHistory();
    const prompt_ids = ids_of(prompt), generated = [], gaps = [];
    const gap_of = (p) => { const [a, b] = [...p.values()].slice(0, 2); return +(Math.log(a) - Math.log(b)).toFixed(4); };
    let next = prompt_ids;
    while (generated.length < 64) {
        const out = await sequence.controlledEvaluate(next.map((t, i) => i === next.length - 1 ?
            [t, {generateNext: {token: true, probabilities: true, options: {temperature: 0}}}] : t));
        const last = out[next.length - 1].next;
        generated.push(last.token);
        gaps.push(gap_of(last.probabilities));
        next = [last.token];
    }
    runs.push({prompt, prompt_ids, generated, gaps});
}
console.log(JSON.stringify({command: "node greedy.mjs " + process.argv[2].split("/").pop(), judge: "node-llama-cpp 3.21.1", runs}));
process.exit(0);
