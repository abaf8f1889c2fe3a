// Run by `npm version`, which has set the version in package.json and package-lock.json: gives the changes under
// [Unreleased] in CHANGELOG.md this version and the date, and adds the file to the commit. All packages take their version
// from package.json (ts/pack.js), and so does the addon (binding.gyp).
'use strict';

const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const root = path.dirname(__dirname);
const HEADING = '## [Unreleased]\n';

/**
 * Returns the changelog with a section for this version.
 * @throws Error if there is nothing to release
 */
exports.release = function release(text, version, date) {
  const begin = text.indexOf(HEADING);
  if (begin < 0) throw new Error('CHANGELOG.md: expected the heading [Unreleased], found none');
  const after = begin + HEADING.length;
  const end = text.indexOf('\n## [', after);
  if (text.slice(after, end < 0 ? undefined : end).trim() === '') {
    throw new Error(
      'CHANGELOG.md: expected changes under [Unreleased], found none. Describe what this version changes',
    );
  }
  if (text.includes(`\n## [${version}]`)) throw new Error(`CHANGELOG.md: ${version} has been released`);
  return `${text.slice(0, after)}\n## [${version}] - ${date}\n${text.slice(after)}`;
};

function main() {
  const file = path.join(root, 'CHANGELOG.md');
  const { version } = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8'));
  const text = exports.release(fs.readFileSync(file, 'utf8'), version, new Date().toISOString().slice(0, 10));
  fs.writeFileSync(file, text);
  execFileSync('git', ['add', 'CHANGELOG.md'], { cwd: root });
}

if (require.main === module) {
  try {
    main();
  } catch (error) {
    console.error(`version: ${error.message}`);
    process.exitCode = 1;
  }
}
