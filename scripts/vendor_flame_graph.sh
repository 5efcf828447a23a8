#!/bin/sh
# Bundle d3-flame-graph and the modules of D3 that it needs into one module of the live page, which asks no other host.
# Needs npm and the network. The versions stand here and in LICENCE.txt beside the module.
set -eu
target=$(cd "$(dirname "$0")/.." && pwd)/src/acker/ui/static/vendor/d3-flame-graph.esm.js
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --no-audit --no-fund --save-exact d3-flame-graph@5.0.0 d3-selection@3.0.0 d3-array@3.2.5 d3-dispatch@3.0.2 \
    d3-ease@3.0.2 d3-format@3.1.3 d3-hierarchy@3.1.3 d3-scale@4.0.3 d3-transition@3.0.2 d3-color@3.1.1 \
    d3-interpolate@3.0.2 d3-time@3.1.1 d3-time-format@4.1.1 d3-timer@3.0.2 internmap@2.0.3 esbuild@0.28.2
cat >entry.js <<'END'
export { default as flamegraph } from "d3-flame-graph";
export { select } from "d3-selection";
END
npx esbuild entry.js --bundle --minify --format=esm --legal-comments=none --loader:.css=empty --outfile="$target"
