#!/usr/bin/env bash
# Builds the image from packaging/Containerfile on a Debian that debootstrap makes, and runs it with Podman: it serves on
# port 80 as an ordinary user, is healthy, keeps its data in a volume, and stops on SIGTERM. Prints sizes and start times.
# Needs root and the single executable (npm run build:binary).
#
#     test/image/run.sh
#
# DEBIAN: a folder that debootstrap has made.
set -euo pipefail
cd "$(dirname "$0")/../.."
missing=()
for name in podman runc debootstrap setcap; do command -v $name > /dev/null || missing+=("${name/setcap/libcap2-bin}"); done
[ ${#missing[@]} -eq 0 ] || { apt-get update -q && apt-get install -qy --no-install-recommends buildah "${missing[@]}"; }

work=$(mktemp -d)
clean() {
  podman rm --force --all > /dev/null 2>&1 || true
  podman volume rm --force --all > /dev/null 2>&1 || true
  rm -rf --one-file-system "$work"
}
trap clean EXIT
# A store for this run. The driver vfs and the other settings work without systemd, overlayfs and networks of containers.
printf '[storage]\ndriver = "vfs"\nrunroot = "%s/run"\ngraphroot = "%s/store"\n' "$work" "$work" > "$work/storage.conf"
export CONTAINERS_STORAGE_CONF=$work/storage.conf
podman() { command podman --runtime runc --cgroup-manager cgroupfs "$@" 2> >(grep -v 'systemd connection' >&2); }
container=(--network host --ulimit nofile=1024:1024 --ulimit nproc=4096:4096)

base=${DEBIAN:-$work/debian}
[ -d "$base" ] || debootstrap --variant=minbase --include=libcap2-bin bookworm "$base" http://deb.debian.org/debian > "$work/debootstrap.log"
tar -C "$base" --exclude=./var/cache/apt/archives/*.deb --exclude=./var/lib/apt/lists/* -c . | podman import - capstan-base > /dev/null 2>&1
podman build --layers=false --isolation chroot --network host --format docker --build-arg BASE=localhost/capstan-base \
  -f packaging/Containerfile -t capstan build/binary > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
size() { podman image inspect "$1" --format '{{.Size}}'; }
echo "image: $(($(size capstan) / 1000000)) MB, $((($(size capstan) - $(size capstan-base)) / 1000000)) MB of it Capstan"

fail() { echo "$1"; podman logs "$name" | tail -20; exit 1; }
expect() { [ "$2" = "$3" ] || fail "$1: expected $2, got $3"; }
await() {
  local _
  for _ in {1..300}; do
    ! curl -sf -o /dev/null "$1" || return 0
    [ "$(podman inspect "$name" --format '{{.State.Running}}')" = true ] || fail 'expected a running container'
    sleep 0.1
  done
  fail "expected an answer of $1"
}
stop() {
  local begin=$EPOCHREALTIME
  podman stop --time 30 "$name" > /dev/null
  echo "stopped after $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) ms"
  expect 'exit code after SIGTERM' 0 "$(podman inspect "$name" --format '{{.State.ExitCode}}')"
}

echo '---- serve'
name=capstan-serve
podman create "${container[@]}" --name $name capstan > /dev/null
begin=$EPOCHREALTIME
podman start $name > /dev/null
await http://127.0.0.1/health
echo "healthy after $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) ms"
podman healthcheck run $name || fail 'expected a healthy container'
expect user 10001 "$(podman exec $name id -u)"
expect 'capabilities of the server' 0000000000000400 "$(podman exec $name sed -n 's/^CapEff:\s*//p' /proc/1/status)"
answer=$(curl -s http://127.0.0.1/v1/chat/completions -H 'Content-Type: application/json' \
  -d '{"model":"demo","temperature":0,"messages":[{"role":"user","content":"What is Capstan?"}]}')
[[ $answer == *Capstan* ]] || fail "expected an answer about Capstan, got: $answer"
stop
if podman healthcheck run $name > /dev/null 2>&1; then fail 'expected an unhealthy container after its end'; fi

echo '---- up, with its data in a volume'
# unmask: the sandbox of a deployment mounts a /proc, which the kernel refuses below one with hidden parts.
up=(--security-opt unmask=ALL --env CAPSTAN_HEALTH_URL=http://127.0.0.1:8090/readyz --entrypoint /bin/sh capstan -c
  'printf "correct horse battery" > /tmp/password && chmod 600 /tmp/password && exec capstan up --data-dir /var/lib/capstan \
   --bootstrap-email ada@example.com --bootstrap-password-file /tmp/password --stop-deployments')
deploy='export CAPSTAN_URL=http://127.0.0.1:8090
  CAPSTAN_TOKEN=$(capstan tokens create --data-dir /var/lib/capstan --email ada@example.com --name $0)
  export CAPSTAN_TOKEN
  [ $0 = capstan-up-again ] || capstan deploy chat --wait
  capstan deployments get chat --json'
for name in capstan-up capstan-up-again; do
  podman run -d "${container[@]}" --volume capstan-data:/var/lib/capstan --name $name "${up[@]}" > /dev/null
  await http://127.0.0.1:8090/readyz
  podman healthcheck run $name || fail 'expected a healthy container'
  podman logs $name | grep -o '^Isolation: process L2' || fail 'expected the level L2'
  url=$(podman exec $name sh -c "$deploy" $name | sed -n 's/.*"url": *"\([^"]*\)".*/\1/p') || fail 'expected a deployment'
  await "$url/health"
  stop
done
echo 'image: all checks passed'
