// Writes THIRD-PARTY.md: the projects whose code is in the published packages and in the single executable. Run:
//
//     npm run licences [-- --check]
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { shippedPackages } = require('./dependencies');

const file = path.join(path.dirname(__dirname), 'THIRD-PARTY.md');
/** Licences that allow what Capstan does. A new one needs a person's look. */
const ALLOWED = ['0BSD', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', 'ISC', 'MIT'];

/** What is not a package of npm. */
const OTHERS = [
  ['Node.js', 'that of the build', 'MIT, and those of its parts', 'in the executable, with its file LICENSE'],
  [
    'libc++, libc++abi, libunwind and compiler-rt of LLVM',
    'zig 0.17.1',
    'Apache-2.0 WITH LLVM-exception',
    'in the addon and the sandbox helper',
  ],
  ['node-addon-api', 'headers', 'MIT', 'in the addon'],
];

exports.render = function render() {
  const packages = shippedPackages();
  for (const { name, version, license } of packages) {
    if (!ALLOWED.includes(license)) {
      throw new Error(`${name}@${version}: expected one of the licences ${ALLOWED.join(', ')}, got ${license}`);
    }
  }
  const rows = [...packages.map(({ name, version, license, where }) => [name, version, license, where]), ...OTHERS];
  return `# Licences of other projects

Capstan has the MIT licence (\`LICENSE\`). The published packages and the single executable also contain or install the projects below. Each package has its licence text in its folder; the executable unpacks them to \`node_modules\` below its cache folder. \`npm run licences\` writes this page from \`package-lock.json\`, and a test compares it.

The libraries \`libsql\`, \`tokenizers\` and \`@node-rs/argon2\` are written in Rust. Their packages do not list the crates that they contain.

| project | version | licence | where |
|---|---|---|---|
${rows.map((row) => `| ${row.join(' | ')} |`).join('\n')}
`;
};

function main() {
  const text = exports.render();
  const isCurrent = fs.existsSync(file) && fs.readFileSync(file, 'utf8') === text;
  if (isCurrent) return;
  if (process.argv.includes('--check')) throw new Error('THIRD-PARTY.md is not current. Run: npm run licences');
  fs.writeFileSync(file, text);
}

if (require.main === module) {
  try {
    main();
  } catch (error) {
    console.error(`licences: ${error.message}`);
    process.exitCode = 1;
  }
}
