#!/usr/bin/env bash
# Fresh golden models of a seed that nobody has seen, compared with the engine. Needs PyPI (or a venv made before) and the built addon.
#
#   test/oracle/live.sh [SEED]
#
# CAPSTAN_JUDGE_VENV: where the judge's virtual environment is, or is made (default: ~/.cache/capstan/judge).
# CAPSTAN_JUDGE_RANDOM: how many random configurations beside the table's (default 20).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seed=${1:-$((RANDOM * 32768 + RANDOM))}
venv=${CAPSTAN_JUDGE_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/capstan/judge}
python=$venv/bin/python

# The venv is taken as it is when it holds the pinned versions.
check='import torch, transformers; assert torch.__version__.split("+")[0] == "2.13.0" and transformers.__version__ == "5.23.0"'
if ! "$python" -c "$check" 2>/dev/null; then
  echo "making $venv (about a minute)"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  "$python" -c "$check"
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

echo "== seed $seed (again with: test/oracle/live.sh $seed)"
"$python" "$here/make_models.py" --seed "$seed" --out "$out/table" >"$out/log"
"$python" "$here/make_models.py" --seed "$seed" --random "${CAPSTAN_JUDGE_RANDOM:-20}" --out "$out/random" | tee -a "$out/log"

echo "== the committed fixtures: each feature switched off in transformers must show"
"$python" "$here/make_models.py" --check-mutations --out "$here/fixtures" >"$out/mutations" || { grep INVISIBLE "$out/mutations"; exit 1; }
echo "$(($(grep -vc '(none)' "$out/mutations") - 1)) mutations, all visible"

echo "== tokenizers and templates: transformers repeats the committed goldens"
"$python" "$here/make_templates.py" --out "$out/templates" >/dev/null
diff -rq "$here/fixtures/templates" "$out/templates"

status=0
for dir in table random; do
  echo "== the engine on $dir"
  node -r "$here/register-ts.cjs" "$here/compare.ts" "$out/$dir" || status=1
done
exit $status
