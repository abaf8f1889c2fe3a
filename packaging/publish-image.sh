#!/usr/bin/env bash
# Builds the image for both processors from the executables in build/parts, pushes it, and signs it and its bill of
# materials with cosign, keyless. Run by .github/workflows/release.yml.
#
#     IMAGE=ghcr.io/OWNER/NAME REGISTRY_USER=… REGISTRY_PASSWORD=… packaging/publish-image.sh
#
# BASE: the image to build on. BASE_ARGS: more arguments of `podman build`. WITHOUT_SIGNATURE=1 leaves cosign out.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^  "version": "\(.*\)",$/\1/p' package.json)
image=${IMAGE,,}
# Versions before 1.0.0 and those with a dash have no tag `latest`.
tags=("$version")
[[ $version == *-* || $version == 0.* ]] || tags+=(latest)

[ -z "${REGISTRY_USER:-}" ] || podman login --username "$REGISTRY_USER" --password-stdin "${image%%/*}" <<< "$REGISTRY_PASSWORD"
podman manifest rm "$image:$version" 2> /dev/null || true
podman manifest create "$image:$version"
for pair in amd64:linux-x64-gnu arm64:linux-arm64-gnu; do
  context=build/parts/${pair%:*}
  mkdir -p "$context"
  install -m 0755 "build/parts/capstan-${pair#*:}" "$context/capstan"
  # shellcheck disable=SC2086
  podman build --platform "linux/${pair%:*}" --format docker --build-arg "BASE=${BASE:-docker.io/library/debian:bookworm-slim}" \
    ${BASE_ARGS:-} -f packaging/Containerfile --manifest "$image:$version" "$context"
done
for tag in "${tags[@]}"; do
  podman manifest push --all --digestfile build/parts/digest "$image:$version" "docker://$image:$tag"
done
[ -z "${WITHOUT_SIGNATURE:-}" ] || exit 0
digest=$(cat build/parts/digest)
cosign sign --yes --recursive "$image@$digest"
cosign attest --yes --type cyclonedx --predicate build/parts/sbom.cdx.json "$image@$digest"
