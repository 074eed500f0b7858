#!/bin/sh
# Runs the outside judges again and rewrites the golden files of this folder.
#   make golden        (needs npm, and both models: make models)
# Judges: llama.cpp by node-llama-cpp 3.21.1; numpy on weights that gguf 0.19.0 dequantised.
# They are kept beside the models, outside the tree.
set -eu
cd "$(dirname "$0")"
: "${LARQL_MODEL_DIR:?make golden sets it}"
judges=$LARQL_MODEL_DIR/judges
mkdir -p "$judges"

if [ ! -x "$judges/venv/bin/python" ]; then python3 -m venv "$judges/venv"; fi
"$judges/venv/bin/pip" install --quiet numpy gguf==0.19.0
../tools/judges.sh "$judges"
cp ./*.mjs "$judges"

python3 make_text.py >text.jsonl
"$judges/venv/bin/python" make_dequant.py >dequant.json
"$judges/venv/bin/python" make_fidelity.py >fidelity.json
seq -s ' ' 259 270 >"$judges/ids.txt" && seq -s ' ' 3 7 250 >>"$judges/ids.txt"
while read -r name args; do # models of random weights for the architectures without a real one
    # shellcheck disable=SC2086
    python3 ../tools/make_model.py "$judges/$name.gguf" $args
    "$judges/venv/bin/python" reference.py "$judges/$name.gguf" "$judges/ids.txt" >"synthetic-$name.json"
done <synthetic.txt
for pair in gemma:gemma-3-270m-q4_k_m.gguf smollm2:SmolLM2-135M-Instruct.Q4_1.gguf; do
    name=${pair%%:*} model=$LARQL_MODEL_DIR/${pair#*:}
    echo "$name: tokens" && (cd "$judges" && node tokens.mjs "$model") <text.jsonl >"tokens-$name.txt"
    echo "$name: ids" && (cd "$judges" && node greedy.mjs "$model" --ids) >"ids-$name.txt"
    echo "$name: logits" && "$judges/venv/bin/python" reference.py "$model" "ids-$name.txt" >"logits-$name.json"
    echo "$name: greedy" && (cd "$judges" && node greedy.mjs "$model") >"greedy-$name.json"
done
git status --short . || true
