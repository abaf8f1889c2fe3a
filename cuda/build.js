// Builds build/cuda/capstan_cuda.so with cmake-js: `npm run build:cuda`. The library uses no Node headers, and this
// build needs no network.
'use strict';

const path = require('node:path');

const root = path.dirname(__dirname);
const out = path.join(root, 'build', 'cuda');

function loadCmakeJs() {
  try {
    return require('cmake-js');
  } catch {
    throw new Error(
      'cmake-js is not installed. Run npm install in a checkout of the repository, or call CMake directly: ' +
        'cmake -S cuda -B build/cuda -DCMAKE_BUILD_TYPE=Release && cmake --build build/cuda --parallel 2',
    );
  }
}

async function main() {
  const { BuildSystem } = loadCmakeJs();
  const build = new BuildSystem({
    directory: __dirname,
    out,
    config: 'Release',
    // The same generator as a plain cmake call, so that both can use one build folder.
    preferMake: true,
    parallel: 2,
    // cmake-js would place the library in a subfolder named after the configuration.
    cMakeOptions: { CMAKE_LIBRARY_OUTPUT_DIRECTORY: out },
  });
  // Without this flag cmake-js downloads the Node headers. It reads the flag from cuda/package.json, which does not exist.
  build.options.isNodeApi = true;
  // Configures every time: CAPSTAN_CUDA_ARCHS or the list of sources may have changed.
  await build.configure();
  await build.build();
}

main().catch((error) => {
  console.error(`build:cuda: ${error.message}`);
  process.exitCode = 1;
});
