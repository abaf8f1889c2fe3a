#!/usr/bin/env bash
# Runs `capstan serve demo` behind nginx, HAProxy and Caddy of Debian, each with the configurations in this folder. Installs
# the proxies if they are missing. The first time, it needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=()
for name in nginx haproxy caddy; do command -v $name > /dev/null || packages+=("$name"); done
if [ ${#packages[@]} -gt 0 ]; then
  # Debian starts the services of a package unless this program forbids it.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod +x $policy
  fi
  apt-get update -q
  apt-get install -qy --no-install-recommends "${packages[@]}"
fi
node -r ./test/oracle/register-ts.cjs test/proxies/run.ts
