#!/usr/bin/env bash
# Records the corpus of schemas again, in a temporary folder with the packages of packages.txt and requirements.txt. It
# runs their code: MCP servers list their tools, and pydantic models and examples are evaluated.
#
#     test/oracle/schemas/collect.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '{}' > package.json
xargs npm install --silent --ignore-scripts --no-audit --no-fund --legacy-peer-deps < "$here/packages.txt"
python3 -m venv venv
venv/bin/pip install --quiet -r "$here/requirements.txt"
node "$here/collect.mjs" > npm.json
venv/bin/python "$here/collect.py" > pypi.json
python3 "$here/join.py" npm.json pypi.json > "$here/corpus.json"
