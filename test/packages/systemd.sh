#!/usr/bin/env bash
# Runs the units of packaging/ under Debian 12's systemd, in a system that debootstrap makes and systemd-nspawn boots: the
# checks of systemd-analyze, `serve`, and `up` with a deployment in a sandbox that goes on while the service restarts.
# Needs root and the single executable (npm run build:binary).
#
#     test/packages/systemd.sh
#
# DEBIAN: a folder with systemd and dbus that debootstrap has made. It is changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
missing=()
for name in debootstrap systemd-nspawn; do command -v $name > /dev/null || missing+=("${name/systemd-nspawn/systemd-container}"); done
[ ${#missing[@]} -eq 0 ] || { apt-get update -q && apt-get install -qy --no-install-recommends "${missing[@]}"; }

work=$(mktemp -d)
nspawn=
clean() {
  [ -z "$nspawn" ] || { kill "$nspawn" && wait "$nspawn"; } 2> /dev/null || true
  rm -rf --one-file-system "$work"
}
trap clean EXIT
system=${DEBIAN:-$work/debian}
[ -d "$system" ] || debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$system" http://deb.debian.org/debian > "$work/debootstrap.log"
install build/binary/capstan "$system/usr/local/bin/capstan"
cp packaging/*.service "$system/etc/systemd/system/"
chroot "$system" useradd --system capstan 2> /dev/null || true
rm -rf "$system"/var/lib/capstan* "$system"/var/cache/capstan*

echo '---- systemd-analyze'
# Exposure from 0 to 10, times 10. `up` needs namespaces and mounts.
for unit in capstan:45 capstan-serve:22; do
  name=${unit%:*}
  # 252 does not know DelegateSubgroup.
  chroot "$system" systemd-analyze verify "/etc/systemd/system/$name.service" 2>&1 | grep -v DelegateSubgroup && exit 1
  chroot "$system" systemd-analyze security --offline=true --threshold="${unit#*:}" "/etc/systemd/system/$name.service" | tail -1
done

echo '---- boot'
mkdir -p "$system"/etc/systemd/system/capstan{,-serve}.service.d
cat > "$system/etc/systemd/system/capstan.service.d/test.conf" << 'END'
[Service]
ExecStart=
ExecStart=/usr/local/bin/capstan up --data-dir /var/lib/capstan --bootstrap-email ada@example.com --bootstrap-password-file /var/lib/capstan/password
END
systemd-nspawn --directory "$system" --boot --register=no --keep-unit > "$work/boot.log" 2>&1 &
nspawn=$!
inside() { cd /; nsenter --target "$leader" --all --wd=/ env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin "$@"; }
fail() { echo "$1"; inside journalctl --no-pager -n 30 -u "$unit" || cat "$work/boot.log"; exit 1; }
until leader=$(pgrep -P $nspawn) && inside systemctl is-system-running 2> /dev/null | grep -qE '^(running|degraded)$'; do
  kill -0 $nspawn 2> /dev/null || { cat "$work/boot.log"; exit 1; }
  sleep 0.2
done
inside systemctl --version | head -1
await() {
  local _
  for _ in {1..300}; do
    ! curl -sf -o /dev/null "$1" || return 0
    sleep 0.1
  done
  fail "expected an answer of $1"
}
chat() {
  curl -s "$1" -H 'Content-Type: application/json' \
    -d '{"model":"demo","temperature":0,"messages":[{"role":"user","content":"What is Capstan?"}]}' | grep -o 'Capstan is[^"]*' || fail "expected an answer of $1"
}

echo '---- capstan-serve.service'
unit=capstan-serve
mkdir -p "$system/etc/capstan"
echo 'ARGS=--port 81' > "$system/etc/capstan/serve.env"
inside systemctl start $unit
await http://127.0.0.1:81/health
chat http://127.0.0.1:81/v1/chat/completions
uid=$(inside sh -c "stat -c %u /proc/\$(systemctl show -P MainPID $unit)")
[ "$uid" -ge 61184 ] || fail "expected a dynamic user, got $uid"
inside systemctl stop $unit
[ "$(inside systemctl show -P Result $unit)" = success ] || fail 'expected a clean stop'

echo '---- capstan.service'
unit=capstan
install -d -m 0700 "$system/var/lib/capstan"
(umask 077 && printf 'correct horse battery' > "$system/var/lib/capstan/password")
inside chown -R capstan: /var/lib/capstan
inside systemctl start $unit
await http://127.0.0.1:8090/readyz
inside journalctl --no-pager -o cat -u $unit | grep -o 'Isolation: process L2' || fail 'expected the level L2'
inside journalctl --no-pager -o cat -u $unit | grep -o 'Memory .*' || true
as_user() { inside setpriv --reuid=capstan --regid=capstan --clear-groups env HOME=/tmp CAPSTAN_UNPACK_DIR=/tmp/commands CAPSTAN_URL=http://127.0.0.1:8090 "$@"; }
token=$(as_user capstan tokens create --data-dir /var/lib/capstan --email ada@example.com --name cli)
as_user CAPSTAN_TOKEN="$token" capstan deploy chat --wait || fail 'expected a deployment'
url=$(as_user CAPSTAN_TOKEN="$token" capstan deployments get chat --json | sed -n 's/.*"url": *"\([^"]*\)".*/\1/p')
chat "$url/v1/chat/completions"
# Its process is in another namespace for processes, so that the host finds it among all processes below the system.
replica() { pgrep -f '^/usr/local/bin/capstan .*main.js serve' | head -1 || true; }
before=$(replica)
inside systemctl restart $unit
await http://127.0.0.1:8090/readyz
await "$url/health"
[ -n "$before" ] || fail "expected a replica"
[ "$before" = "$(replica)" ] || fail "expected that the replica $before goes on, got $(replica)"
echo "the replica went on through a restart of the service"
as_user CAPSTAN_TOKEN="$token" capstan deployments delete chat --yes
inside systemctl stop $unit
[ "$(inside systemctl show -P Result $unit)" = success ] || fail 'expected a clean stop'
echo 'systemd: all checks passed'
