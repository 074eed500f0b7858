// The outside judge of the tokenizer: llama.cpp, by node-llama-cpp 3.21.1.
//   node tokens.mjs MODEL.gguf < text.jsonl > tokens-NAME.txt
// A line of ids for each line of text; no BOS or EOS added, control tokens not parsed.
import {getLlama} from "node-llama-cpp";
import {createInterface} from "node:readline";

const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2], vocabOnly: true});
for await (const line of createInterface({input: process.stdin}))
    console.log(Array.from(model._model.tokenize(JSON.parse(line), false)).join(" "));
process.exit(0);
