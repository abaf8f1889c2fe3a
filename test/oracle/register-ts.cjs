// Makes node load TypeScript files: node -r ./test/oracle/register-ts.cjs SCRIPT.ts
'use strict';

const { createHash } = require('node:crypto');
const { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } = require('node:fs');
const Module = require('node:module');
const { dirname, join, resolve } = require('node:path');
const { threadId } = require('node:worker_threads');

const OPTIONS = {
  jsc: { parser: { syntax: 'typescript' }, target: 'es2022' },
  module: { type: 'commonjs' },
  sourceMaps: 'inline',
};
const VERSION = require('@swc/core/package.json').version + JSON.stringify(OPTIONS);

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

const cache = join(__dirname, '../../build/register-ts');

function transform(filename) {
  const source = readFileSync(filename, 'utf8');
  // Paths are in the source maps.
  const name = createHash('sha256').update(VERSION).update(filename).update(source).digest('hex');
  const compiled = join(cache, `${name}.js`);
  if (existsSync(compiled)) return readFileSync(compiled, 'utf8');
  // Loaded only if it is needed, because loading it takes as long as compiling many files.
  const { code } = require('@swc/core').transformSync(source, { filename, ...OPTIONS });
  try {
    mkdirSync(cache, { recursive: true });
    const unfinished = `${compiled}.${process.pid}.${threadId}`;
    writeFileSync(unfinished, code);
    renameSync(unfinished, compiled);
  } catch {
    // Another user may not write to the folder.
  }
  return code;
}

require.extensions['.ts'] = (module, filename) => module._compile(transform(filename), filename);
