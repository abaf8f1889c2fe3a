#!/usr/bin/env bash
# Tests a running server against its /openapi.json: schemathesis sends valid and invalid requests and checks every
# response.
#
#   test/oracle/schemathesis.sh [EXAMPLES [SEED]]
#
# EXAMPLES: maximum random requests per operation and phase, besides those for schema coverage (default: 100).
# CAPSTAN_SCHEMATHESIS_VENV: path of the virtual environment, created if missing (default:
# ~/.cache/capstan/schemathesis).
set -euo pipefail
cd "$(dirname "$0")/../.."

examples=${1:-100}
seed=${2:-1}
venv=${CAPSTAN_SCHEMATHESIS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/capstan/schemathesis}
[ -x "$venv/bin/schemathesis" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install -q schemathesis==4.32.5; }
work=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

# Starts a server with additional flags and sets url. The context is short, because many requests do not limit tokens.
start() {
  node dist/server/main.js serve demo --port 0 --max-model-len 512 --log-level warn "$@" >"$work/out" 2>"$work/err" &
  server=$!
  for _ in $(seq 300); do
    url=$(grep -o 'curl http://[^/]*' "$work/out" | cut -d' ' -f2) && return
    kill -0 "$server" || { cat "$work/err"; exit 1; }
    sleep 0.1
  done
  echo 'the server did not start within 30 s'; exit 1
}

stop() {
  kill -0 "$server" || { echo 'the server has exited'; cat "$work/err"; exit 1; }
  kill "$server"
  wait "$server"
}

# A schema cannot express rules between fields (stream_options needs stream, a prompt must fit), so valid requests may
# get 400.
run() {
  # Keeps its caches out of the working tree.
  (cd "$work" && "$venv/bin/schemathesis" --config-file "$work/config.toml" run "$url/openapi.json" --seed "$seed" --continue-on-failure --request-timeout 120 --suppress-health-check all \
    --phases examples,coverage,fuzzing --max-examples "$1" --exclude-checks "positive_data_acceptance$2" "${@:3}")
}
touch "$work/config.toml"

printf '\n==== node:http\n'
start --http-transport node
run "$examples" '' --exclude-tag 'not implemented'
printf '\n==== routes that are not implemented\n'
run 5 ,not_a_server_error --include-tag 'not implemented'
stop

printf '\n==== with access control\n'
start --http-transport node --api-key secret
run 5 '' --exclude-tag 'not implemented' -H 'Authorization: Bearer secret'
stop

# uWebSockets.js closes the connection for unknown methods such as QUERY.
printf '\n==== uWebSockets.js\n'
printf '[phases.coverage]\nunexpected-methods = ["get", "put", "post", "delete", "options", "patch", "trace"]\n' >"$work/config.toml"
start --http-transport uws
run "$((examples / 5 + 1))" '' --exclude-tag 'not implemented'
stop
