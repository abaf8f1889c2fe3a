#!/usr/bin/env bash
# Publishes the packages in build/packages, first what `capstan` depends on. A version that the registry has is left out,
# so that a release that failed half-way can run again. Needs GITHUB_REPOSITORY and the login of npm.
#
#     packaging/publish-packages.sh
set -euo pipefail
cd "$(dirname "$0")/.."
for folder in linux-x64-gnu linux-arm64-gnu capstan service; do
  package=./build/packages/$folder
  name=$(node -p 'require(process.argv[1]).name' "$package/package.json")
  version=$(node -p 'require(process.argv[1]).version' "$package/package.json")
  # Fails for a package without versions. Then, and if the registry does not answer, `npm publish` decides.
  if [ "$(npm view "$name@$version" version 2> /dev/null || true)" = "$version" ]; then
    echo "$name@$version: published before"
    continue
  fi
  # Provenance compares this address with the repository of the workflow.
  npm pkg set --prefix "$package" repository.type=git "repository.url=git+https://github.com/$GITHUB_REPOSITORY.git"
  npm publish --provenance --access public "$package"
done
