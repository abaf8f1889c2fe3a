// Makes node load TypeScript files: node -r ./test/oracle/register-ts.cjs SCRIPT.ts
'use strict';

const { existsSync, readFileSync } = require('node:fs');
const Module = require('node:module');
const { dirname, join, resolve } = require('node:path');
const { transformSync } = require('@swc/core');

// Dynamic imports name the compiled file.
const { _resolveFilename: resolveFilename } = Module;
const server = join(__dirname, '../../server');
const SOURCES = {
  'capstan/internal': join(server, 'internal.ts'),
  'capstan/internal/cli': join(server, 'internal-cli.ts'),
  '#service': join(server, 'platform/index.ts'),
};
Module._resolveFilename = function (request, parent, ...rest) {
  if (request in SOURCES) return SOURCES[request];
  const source =
    /^\.{1,2}\/.*\.js$/.test(request) && parent?.filename?.endsWith('.ts')
      ? resolve(dirname(parent.filename), request.replace(/js$/, 'ts'))
      : '';
  return resolveFilename.call(this, source !== '' && existsSync(source) ? source : request, parent, ...rest);
};

require.extensions['.ts'] = (module, filename) => {
  const { code } = transformSync(readFileSync(filename, 'utf8'), {
    filename,
    jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
    module: { type: 'commonjs' },
    sourceMaps: 'inline',
  });
  module._compile(code, filename);
};
