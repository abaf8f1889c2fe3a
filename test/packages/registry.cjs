// A registry for npm that serves the packages of a folder, and redirects to the public registry for all others:
//
//     node test/packages/registry.cjs build/packages        prints its URL
'use strict';

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');

const UPSTREAM = process.env.UPSTREAM_REGISTRY ?? 'https://registry.npmjs.org';
const folder = path.resolve(process.argv[2]);

/** Package name to its manifest and tarball. */
const packages = new Map();
for (const entry of fs.readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory())) {
  const manifest = JSON.parse(fs.readFileSync(path.join(folder, entry.name, 'package.json'), 'utf8'));
  const file = `${manifest.name.replace('@', '').replace('/', '-')}-${manifest.version}.tgz`;
  packages.set(manifest.name, { manifest, file });
}

// Yarn wants the manifest of every platform package, also of one that is not built here. The processor makes it skip it.
for (const name of Object.keys(packages.get('capstan').manifest.optionalDependencies)) {
  const { version } = packages.get('capstan').manifest;
  if (!packages.has(name)) packages.set(name, { manifest: { name, version, cpu: ['none'] }, file: undefined });
}

const server = http.createServer((request, response) => {
  const url = decodeURIComponent(request.url);
  const tarball = path.join(folder, path.basename(url));
  if (url.startsWith('/tarballs/') && fs.existsSync(tarball)) return fs.createReadStream(tarball).pipe(response);
  const found = packages.get(url.slice(1));
  if (found === undefined) return response.writeHead(302, { location: UPSTREAM + request.url }).end();
  const { manifest, file } = found;
  const bytes = file === undefined ? '' : fs.readFileSync(path.join(folder, file));
  const sha512 = createHash('sha512').update(bytes).digest('base64');
  const dist = { tarball: `http://${request.headers.host}/tarballs/${file}`, integrity: `sha512-${sha512}` };
  const { name, version } = manifest;
  response.setHeader('content-type', 'application/json');
  response.end(
    JSON.stringify({ name, 'dist-tags': { latest: version }, versions: { [version]: { ...manifest, dist } } }),
  );
});
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
