/** Where the single executable unpacks its files: packaging/executable.js with Node.js, and files of this test. */
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from './fakes/temporary-folder';

const script = join(__dirname, '../packaging/executable.js');
const DAY_S = 86_400;
const MAIN = 'node_modules/capstan/dist/server/main.js';
const work = temporaryFolder('executable');
const preload = join(work, 'preload.js');

/** Stands for the files inside of an executable. `AT_UNPACKING` runs when they are decompressed. */
const PRELOAD = `
const fs = require('node:fs');
const Module = require('node:module');
const load = Module._load;
const assets = JSON.parse(process.env.ASSETS);
const sea = { getAsset: (name) => assets[name], getRawAsset: (name) => new TextEncoder().encode(assets[name]).buffer };
Module._load = (name, ...rest) => (name === 'node:sea' ? sea : load(name, ...rest));
require('node:zlib').zstdDecompressSync = (bytes) => {
  eval(process.env.AT_UNPACKING ?? '');
  return Buffer.from(bytes);
};`;

function assetsOf(contents: Record<string, string>): { id: string; assets: string } {
  const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');
  const files = Object.entries(contents).map(([name, text]) => ({
    name,
    size: text.length,
    sha256: sha256(text),
    isProgram: false,
  }));
  const id = sha256(JSON.stringify(files)).slice(0, 32);
  return {
    id,
    assets: JSON.stringify({ list: JSON.stringify({ id, files }), files: Object.values(contents).join('') }),
  };
}

const { id, assets } = assetsOf({ [MAIN]: `console.log('started');`, 'node_modules/other.js': 'exports.a = 1;' });
const args = ['--require', preload, script];

/** Starts the executable. Returns what it prints. */
function start(env: NodeJS.ProcessEnv): string {
  const { stdout, stderr } = spawnSync(process.execPath, args, {
    env: { PATH: process.env.PATH, ASSETS: assets, ...env },
    encoding: 'utf8',
  });
  return stdout + stderr;
}

let numFolders = 0;
/** Makes a folder for one test. */
function makeFolder(): string {
  const folder = join(work, `${numFolders++}`);
  fs.mkdirSync(folder, { mode: 0o700 });
  return folder;
}

/** Gives a folder an age. */
function age(folder: string, days: number): void {
  const then = Date.now() / 1000 - days * DAY_S;
  fs.utimesSync(folder, then, then);
}

beforeAll(() => fs.writeFileSync(preload, PRELOAD));

describe('a folder that is not safe is refused before anything is made in it', () => {
  const refuses = (folder: string, problem: string): void => {
    expect(start({ CAPSTAN_UNPACK_DIR: folder })).toContain(problem);
  };

  test('below one to which others may write', () => {
    const open = makeFolder();
    fs.chmodSync(open, 0o777);
    refuses(join(open, 'mine'), `other users may write to ${open}`);
    expect(fs.readdirSync(open)).toEqual([]);
  });

  test('through a link that others may have made', () => {
    const [open, other] = [makeFolder(), makeFolder()];
    fs.chmodSync(open, 0o777);
    fs.symlinkSync(other, join(open, 'mine'));
    refuses(join(open, 'mine'), `other users may write to ${open}`);
    expect(fs.readdirSync(other)).toEqual([]);
  });

  test('through a circle of links', () => {
    const folder = makeFolder();
    fs.symlinkSync('executable', join(folder, 'executable'));
    refuses(folder, 'more than 40 links');
  });

  // `sudo -E` keeps the home of the user.
  (process.getuid!() === 0 ? test : test.skip)('by root below the home of a user', () => {
    const [home, tmp] = [makeFolder(), makeFolder()];
    fs.chownSync(home, 65534, 65534);
    expect(start({ HOME: home, TMPDIR: tmp })).toBe('started\n');
    expect(fs.readdirSync(home)).toEqual([]);
    expect(fs.readdirSync(tmp)).toEqual(['capstan-executable-0']);
  });
});

test('the own links of a user are followed', () => {
  const [folder, other] = [makeFolder(), makeFolder()];
  fs.symlinkSync(`../${numFolders - 1}/./`, join(folder, 'link'));
  expect(start({ CAPSTAN_UNPACK_DIR: join(folder, 'link') })).toBe('started\n');
  expect(fs.readdirSync(join(other, 'executable'))).toEqual([id]);
});

describe('the files of a process that runs stay in place', () => {
  const setUp = () => {
    const folder = makeFolder();
    const cache = join(folder, 'executable');
    const inode = (name: string) => fs.statSync(join(cache, id, name)).ino;
    return { folder, cache, inode };
  };

  test('when another process makes its first start at the same time', () => {
    const { folder, cache, inode } = setUp();
    const inodes = join(folder, 'inodes');
    const first = `
      const { ASSETS, CAPSTAN_UNPACK_DIR } = process.env;
      require('node:child_process').execFileSync(process.execPath, ${JSON.stringify(args)}, { env: { ASSETS, CAPSTAN_UNPACK_DIR } });
      fs.writeFileSync(${JSON.stringify(inodes)}, String(fs.statSync(${JSON.stringify(join(cache, id, MAIN))}).ino));`;
    expect(start({ CAPSTAN_UNPACK_DIR: folder, AT_UNPACKING: first })).toBe('started\n');
    expect(inode(MAIN)).toBe(Number(fs.readFileSync(inodes, 'utf8')));
    expect(fs.readdirSync(cache)).toEqual([id]);
  });

  test('when another file was changed', () => {
    const { folder, cache, inode } = setUp();
    start({ CAPSTAN_UNPACK_DIR: folder });
    const before = inode('node_modules/other.js');
    fs.writeFileSync(join(cache, id, MAIN), 'process.exit(3)');
    expect(start({ CAPSTAN_UNPACK_DIR: folder })).toBe('started\n');
    expect(inode('node_modules/other.js')).toBe(before);
    expect(fs.readdirSync(cache)).toEqual([id]);
  });

  test('when a folder and a file have changed places', () => {
    const { folder, cache } = setUp();
    start({ CAPSTAN_UNPACK_DIR: folder });
    const modules = join(cache, id, 'node_modules');
    fs.rmSync(join(modules, 'capstan'), { recursive: true });
    fs.writeFileSync(join(modules, 'capstan'), '');
    fs.rmSync(join(modules, 'other.js'));
    fs.mkdirSync(join(modules, 'other.js', 'more'), { recursive: true });
    expect(start({ CAPSTAN_UNPACK_DIR: folder })).toBe('started\n');
    expect(fs.readFileSync(join(modules, 'other.js'), 'utf8')).toBe('exports.a = 1;');
  });
});

describe('a start removes', () => {
  const version = (digit: string) => digit.repeat(32);

  test('versions that were not used for 30 days, and what killed processes have left', () => {
    const folder = makeFolder();
    const cache = join(folder, 'executable');
    const make = (name: string, days: number): void => {
      fs.mkdirSync(join(cache, name, 'node_modules'), { recursive: true });
      age(join(cache, name), days);
    };
    start({ CAPSTAN_UNPACK_DIR: folder });
    age(join(cache, id), 40);
    make(version('a'), 31);
    make(version('b'), 29);
    make('new-aB3dEf', 2);
    make('new-aB3dEg', 0.5);
    make('old-aB3dEf', 2);
    make('notes', 400);
    expect(start({ CAPSTAN_UNPACK_DIR: folder })).toBe('started\n');
    expect(fs.readdirSync(cache).sort()).toEqual([id, version('b'), 'new-aB3dEg', 'notes'].sort());
    // The start has set the time.
    expect(Date.now() - fs.statSync(join(cache, id)).mtimeMs).toBeLessThan(DAY_S * 1000);
  });

  test('no version from which a process runs', async () => {
    const folder = makeFolder();
    const tree = join(folder, 'executable', version('c'));
    fs.mkdirSync(tree, { recursive: true, mode: 0o700 });
    fs.writeFileSync(join(tree, 'replica.js'), `console.log('runs'); process.stdin.resume();`);
    age(tree, 100);
    const replica = spawn(process.execPath, [join(tree, 'replica.js')], { stdio: ['pipe', 'pipe', 'inherit'] });
    await new Promise((resolve) => replica.stdout.once('data', resolve));
    start({ CAPSTAN_UNPACK_DIR: folder });
    expect(fs.existsSync(tree)).toBe(true);
    replica.stdin.end();
    await new Promise((resolve) => replica.once('exit', resolve));
    start({ CAPSTAN_UNPACK_DIR: folder });
    expect(fs.existsSync(tree)).toBe(false);
  });
});
