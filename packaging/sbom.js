// Writes build/sbom.cdx.json, a CycloneDX bill of materials of the packages and the single executable. Run: npm run sbom
//
//     node packaging/sbom.js [--node VERSION]        the Node.js in the executable (default: the one that runs this)
//
// `npm sbom` lists what npm installs. This adds what is inside of Capstan's own files.
'use strict';

const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { shippedPackages } = require('./dependencies');

const root = path.dirname(__dirname);

function component({ name, version, license }) {
  const at = name.lastIndexOf('/');
  const purl = `pkg:npm/${encodeURIComponent(name.slice(0, Math.max(at, 0)))}${at < 0 ? '' : '/'}${name.slice(at + 1)}@${version}`;
  return {
    'bom-ref': `${name}@${version}`,
    type: 'library',
    name,
    version,
    scope: 'required',
    purl,
    licenses: [{ license: { id: license } }],
  };
}

function main() {
  const at = process.argv.indexOf('--node');
  const nodeVersion = at < 0 ? process.versions.node : process.argv[at + 1];
  if (!/^\d+\.\d+\.\d+$/.test(nodeVersion))
    throw new Error(`--node: expected a version such as 24.1.0, got ${nodeVersion}`);
  const text = execFileSync(
    'npm',
    [
      'sbom',
      '--package-lock-only',
      '--omit',
      'dev',
      '--omit',
      'peer',
      '--sbom-format',
      'cyclonedx',
      '--sbom-type',
      'application',
    ],
    { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 },
  );
  const sbom = JSON.parse(text);
  // npm takes the name of the folder.
  sbom.metadata.component.name = 'capstan';
  const known = new Set(sbom.components.map(({ name, version }) => `${name}@${version}`));
  const inside = shippedPackages().filter(({ name, version }) => !known.has(`${name}@${version}`));
  const node = {
    'bom-ref': `node@${nodeVersion}`,
    type: 'platform',
    name: 'node',
    version: nodeVersion,
    scope: 'required',
    purl: `pkg:generic/node@${nodeVersion}`,
    licenses: [{ license: { id: 'MIT' } }],
  };
  sbom.components.push(...inside.map(component), node);
  const ref = sbom.metadata.component['bom-ref'];
  const own = sbom.dependencies.find((entry) => entry.ref === ref);
  const refs = [...inside.map(({ name, version }) => `${name}@${version}`), node['bom-ref']];
  own.dependsOn = [...new Set([...own.dependsOn, ...refs])];
  sbom.dependencies.push(...refs.map((entry) => ({ ref: entry, dependsOn: [] })));
  const file = path.join(root, 'build', 'sbom.cdx.json');
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, `${JSON.stringify(sbom, null, 2)}\n`);
  console.log(`build/sbom.cdx.json: CycloneDX ${sbom.specVersion}, ${sbom.components.length} components`);
}

try {
  main();
} catch (error) {
  console.error(`sbom: ${error.message}`);
  process.exitCode = 1;
}
