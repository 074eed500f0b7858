#!/bin/sh
# judges.sh FOLDER: llama.cpp as node-llama-cpp 3.21.1 packages it, installed outside the tree.
set -eu
mkdir -p "$1"
[ -f "$1/package.json" ] || echo '{"private": true, "type": "module"}' >"$1/package.json"
[ -d "$1/node_modules/node-llama-cpp" ] ||
    (cd "$1" && npm install --silent --save-exact --ignore-scripts node-llama-cpp@3.21.1)
