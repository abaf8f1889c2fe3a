'use strict';

const { availableParallelism } = require('node:os');
const { folder: bundled } = require('./test/bundle-modules');
const slowFiles = require('./test/slow-files');

const base = {
  testEnvironment: 'node',
  runtime: '<rootDir>/test/runtime.js',
  globalSetup: '<rootDir>/test/setup.js',
  globalTeardown: '<rootDir>/test/teardown.js',
  transform: {
    '^.+\\.(ts|mjs)$': [
      '@swc/jest',
      { jsc: { parser: { syntax: 'typescript' }, target: 'es2022' }, module: { type: 'commonjs' } },
    ],
  },
  modulePathIgnorePatterns: ['<rootDir>/build/packages/'],
  moduleFileExtensions: ['ts', 'js', 'mjs', 'json', 'node'],
  // Dynamic imports name the compiled file.
  moduleNameMapper: {
    '^(\\.{1,2}/.*)\\.js$': '$1',
    '^capstan/internal$': '<rootDir>/server/internal.ts',
    '^capstan/internal/cli$': '<rootDir>/server/internal-cli.ts',
    '^#service$': '<rootDir>/server/platform/index.ts',
    '^#libsql$': 'libsql',
    '^typebox$': `${bundled}/typebox.js`,
    '^typebox/schema$': `${bundled}/schema.js`,
    '^openid-client$': `${bundled}/openid-client.js`,
    // test/packages/run.sh tests an installation of the packages.
    ...(process.env.CAPSTAN_INSTALLED && { '/ts(/index)?$': `${process.env.CAPSTAN_INSTALLED}/node_modules/capstan` }),
  },
};

const slow = `/test/(${slowFiles.join('|')})`;

/**
 * `unit` needs no addon. `native` uses the built addon and starts whole servers. `npm test` runs both. `slow` has the
 * files of test/slow-files.js, for `npm run test:slow`.
 */
module.exports = {
  projects: [
    {
      ...base,
      displayName: 'unit',
      testMatch: ['<rootDir>/test/*.test.ts', '<rootDir>/test/{ts,server}/**/*.test.ts'],
      testPathIgnorePatterns: [slow],
    },
    {
      ...base,
      displayName: 'native',
      testMatch: ['<rootDir>/test/{native,oracle,models}/**/*.test.ts'],
      testPathIgnorePatterns: [slow],
    },
    { ...base, displayName: 'slow', testRegex: `${slow}.*(?<=\\.test\\.ts)$` },
  ],
  testSequencer: '<rootDir>/test/sequencer.js',
  reporters: ['default', '<rootDir>/test/slow-tests.js'],
  testTimeout: 60_000,
  // More than the cores: many tests wait for processes and pages.
  maxWorkers: Math.ceil(availableParallelism() * 1.5),
};
