#!/usr/bin/env bash
# Compares the engine with new golden models of a random seed. Needs the built addon, and PyPI or an existing venv.
#
#   test/oracle/live.sh [SEED]
#
# CAPSTAN_JUDGE_VENV: path of the virtual environment, created if missing (default: ~/.cache/capstan/judge).
# CAPSTAN_JUDGE_RANDOM: number of random configurations besides those of the table (default: 20). There are half as many
# models that pool, and half as many quantized checkpoints. They need packages of requirements-more.txt, in a second
# environment ("$CAPSTAN_JUDGE_VENV-more").
# CAPSTAN_JUDGE_MUTATIONS=0: leaves out the checks of the committed fixtures that disable one feature of the judge at a time.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seed=${1:-$((RANDOM * 32768 + RANDOM))}
venv=${CAPSTAN_JUDGE_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/capstan/judge}
python=$venv/bin/python

# Reuses a venv that has the pinned versions.
check='import torch, transformers; assert torch.__version__.split("+")[0] == "2.13.0" and transformers.__version__ == "5.23.0"'
if ! "$python" -c "$check" 2>/dev/null; then
  echo "making $venv (about a minute)"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check -r "$here/requirements.txt"
  "$python" -c "$check"
fi

more=$venv-more
check='import bitsandbytes, compressed_tensors, sentence_transformers, sys; sys.exit(sentence_transformers.__version__ != "6.2.0")'
if ! "$more/bin/python" -c "$check" 2>/dev/null; then
  echo "making $more"
  python3 -m venv "$more"
  "$python" -c 'import site; print(site.getsitepackages()[0])' >"$("$more/bin/python" -c 'import site; print(site.getsitepackages()[0])')/judge.pth"
  "$more/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps -r "$here/requirements-more.txt"
  "$more/bin/python" -c "$check"
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

echo "== seed $seed (again with: test/oracle/live.sh $seed)"
"$python" "$here/make_models.py" --seed "$seed" --out "$out/table" >"$out/log"
"$python" "$here/make_models.py" --seed "$seed" --random "${CAPSTAN_JUDGE_RANDOM:-20}" --out "$out/random" | tee -a "$out/log"

half=$((${CAPSTAN_JUDGE_RANDOM:-20} / 2))
"$more/bin/python" "$here/make_embeddings.py" --seed "$seed" --random "$half" --out "$out/pooling" 2>&1 | tee -a "$out/log"
"$more/bin/python" "$here/random_quantized.py" --seed "$seed" --random "$half" --out "$out/quantized" 2>&1 | tee -a "$out/log"

if [ "${CAPSTAN_JUDGE_MUTATIONS:-1}" != 0 ]; then
  echo "== committed fixtures: disabling each feature in transformers must change the results"
  "$python" "$here/make_models.py" --check-mutations --out "$here/fixtures" >"$out/mutations" || { grep INVISIBLE "$out/mutations"; exit 1; }
  echo "$(($(grep -vc '(none)' "$out/mutations") - 1)) mutations, all visible"

  echo "== MTP heads: disabling each part in torch must change the results"
  "$python" "$here/make_mtp.py" --check-mutations --out "$here/fixtures/mtp" >"$out/mtp-mutations" || { grep WRONG "$out/mtp-mutations"; exit 1; }
fi

echo "== MTP heads: torch must reproduce the committed goldens"
"$python" "$here/make_mtp.py" --check --out "$here/fixtures/mtp"

echo "== tokenizers and templates: transformers must reproduce the committed goldens"
"$python" "$here/make_templates.py" --out "$out/templates" >/dev/null
diff -rq "$here/fixtures/templates" "$out/templates"

status=0
for dir in table random quantized; do
  echo "== the engine on $dir"
  node -r "$here/register-ts.cjs" "$here/compare.ts" "$out/$dir" || status=1
done
echo "== the engine on pooling"
node -r "$here/register-ts.cjs" "$here/compare-embeddings.ts" "$out/pooling" || status=1
exit $status
