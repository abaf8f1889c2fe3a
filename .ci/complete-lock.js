// Adds the optional packages of other platforms to package-lock.json. If the registry lacks them, `npm install` leaves
// them out of the lock, and `npm ci` then refuses it. Run after every change of dependencies: node .ci/complete-lock.js
'use strict';

const fs = require('node:fs');

const lockPath = `${__dirname}/../package-lock.json`;
const lock = JSON.parse(fs.readFileSync(lockPath, 'utf8'));
const OS = ['darwin', 'linux', 'win32', 'android', 'freebsd', 'openharmony', 'openbsd', 'netbsd', 'sunos', 'aix'];
const CPU = ['arm64', 'x64', 'arm', 'ia32', 'ppc64', 's390x', 'riscv64', 'loong64', 'wasm32', 'mips64el'];
const added = [];
for (const [path, pkg] of Object.entries(lock.packages)) {
  for (const [name, version] of Object.entries(pkg.optionalDependencies ?? {})) {
    const key = `node_modules/${name}`;
    const nested = `${path}/node_modules/${name}`;
    if (lock.packages[key] || lock.packages[nested]) continue;
    const parts = name.split(/[\/-]/);
    const os = OS.find((o) => parts.includes(o));
    const cpu = CPU.find((c) => parts.includes(c));
    if (!os || !cpu || !/^\d/.test(version)) continue;
    const libc = os !== 'linux' ? undefined : /musl/.test(name) ? ['musl'] : /gnu/.test(name) ? ['glibc'] : undefined;
    lock.packages[key] = {
      version,
      cpu: [cpu],
      ...(pkg.dev ? { dev: true } : {}),
      ...(libc ? { libc } : {}),
      ...(pkg.license ? { license: pkg.license } : {}),
      optional: true,
      os: [os],
      ...(pkg.engines ? { engines: pkg.engines } : {}),
    };
    added.push(name);
  }
}
const sorted = Object.fromEntries(Object.entries(lock.packages).sort(([a], [b]) => a.localeCompare(b, 'en')));
lock.packages = { '': lock.packages[''], ...sorted };
fs.writeFileSync(lockPath, JSON.stringify(lock, null, 2) + '\n');
console.log(`${added.length} packages of other platforms added`);
