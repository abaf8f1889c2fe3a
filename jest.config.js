'use strict';

const base = {
  testEnvironment: 'node',
  transform: {
    '^.+\\.(ts|mjs)$': [
      '@swc/jest',
      { jsc: { parser: { syntax: 'typescript' }, target: 'es2022' }, module: { type: 'commonjs' } },
    ],
  },
  moduleFileExtensions: ['ts', 'js', 'mjs', 'json', 'node'],
  // Dynamic imports name the compiled file.
  moduleNameMapper: { '^(\\.{1,2}/.*)\\.js$': '$1' },
  // Published as ES modules only.
  transformIgnorePatterns: ['/node_modules/(?!typebox/)'],
};

/** `unit` needs no addon; `native` runs on the built one, one file at a time (`npm test` gives it --runInBand). */
module.exports = {
  projects: [
    {
      ...base,
      displayName: 'unit',
      testMatch: ['<rootDir>/test/*.test.ts', '<rootDir>/test/{ts,server}/**/*.test.ts'],
    },
    { ...base, displayName: 'native', testMatch: ['<rootDir>/test/{native,oracle,models}/**/*.test.ts'] },
  ],
  // Not how long a test takes, but when to give up: on a machine that is ten times slower, and busy.
  testTimeout: 400_000,
};
