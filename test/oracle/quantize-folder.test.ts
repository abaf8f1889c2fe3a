/** Which folders `quantize()` fills, and which files it copies. */
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { lstatSync, statSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import path from 'node:path';

import { quantize } from '../../ts/index';
import { temporaryFolder } from '../fakes/temporary-folder';

const MODEL = path.join(__dirname, 'fixtures/llama3-bf16');
const FILES = ['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json'];
const WEIGHTS = ['embedding.capstan'];
const root = temporaryFolder('quantize-folder');
let numFolders = 0;
const newPath = (): string => path.join(root, `folder-${++numFolders}`);
const newFolder = (): string => {
  const folder = newPath();
  mkdirSync(folder);
  return folder;
};
const list = (folder: string): string[] => readdirSync(folder).sort();

afterEach(() => jest.restoreAllMocks());

describe('--out', () => {
  test('is an empty folder, such as a mounted disk: it stays, and gets the files', async () => {
    const out = newFolder();
    mkdirSync(path.join(out, 'lost+found'));
    const before = statSync(out).ino;
    await quantize(MODEL, out);
    expect(list(out)).toEqual([...FILES, ...WEIGHTS, 'lost+found'].sort());
    expect(statSync(out).ino).toBe(before);
    expect(list(root).filter((name) => name.includes('partial'))).toEqual([]);
  });

  test('is a link to an empty folder', async () => {
    const [folder, link] = [newFolder(), newPath()];
    symlinkSync(folder, link);
    expect(await quantize(MODEL, link)).toMatchObject({ path: link });
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect(list(folder)).toEqual([...FILES, ...WEIGHTS].sort());
  });

  test('is left empty after a failure', async () => {
    const out = newFolder();
    const onProgress = () => {
      expect(list(out)).toEqual([expect.stringMatching(/^\.\w+\.partial$/)]);
      throw new Error('stop');
    };
    await expect(quantize(MODEL, out, { onProgress })).rejects.toThrow('stop');
    expect(list(out)).toEqual([]);
  });

  test('gets files of another program during the work: nothing is lost', async () => {
    const out = newFolder();
    const onProgress = () => writeFileSync(path.join(out, 'config.json'), 'theirs');
    await expect(quantize(MODEL, out, { onProgress })).rejects.toThrow('got');
    expect(list(out)).toEqual(['config.json']);
    expect(readFileSync(path.join(out, 'config.json'), 'utf8')).toBe('theirs');
  });

  test('is a link to nothing', async () => {
    const link = newPath();
    symlinkSync(newPath(), link);
    await expect(quantize(MODEL, link)).rejects.toThrow('a link to a folder that does not exist. Create that folder');
  });

  test('is below /proc, which takes no folders', async () => {
    await expect(quantize(MODEL, '/proc/capstan/model')).rejects.toMatchObject({ code: 'io_error' });
  });

  test('is checked before a download', async () => {
    const onDownload = jest.fn();
    await expect(quantize('acme/none', MODEL, { onDownload })).rejects.toThrow(/^out: expected a folder that is empty/);
    expect(onDownload).not.toHaveBeenCalled();
  });

  test('need not be on a file system that syncs folders', async () => {
    const out = newPath();
    const handle = await open(MODEL);
    const prototype = Object.getPrototypeOf(handle) as FileHandle;
    await handle.close();
    const sync = jest.spyOn(prototype, 'sync').mockImplementation(async () => {
      if (existsSync(out)) throw Object.assign(new Error('EINVAL: fsync'), { code: 'EINVAL' });
      await Promise.resolve();
    });
    await quantize(MODEL, out);
    expect(list(out)).toEqual([...FILES, ...WEIGHTS].sort());
    // Weights, embedding, config.json, generation_config.json, tokenizer.json, the folder and its parent.
    expect(sync).toHaveBeenCalledTimes(7);
  });
});

describe('what is copied', () => {
  const newModel = (): string => {
    const folder = newFolder();
    for (const name of readdirSync(MODEL)) copyFileSync(path.join(MODEL, name), path.join(folder, name));
    return folder;
  };

  test('tokenizer, templates and licence, also through links', async () => {
    const model = newModel();
    mkdirSync(path.join(model, 'additional_chat_templates'));
    for (const name of ['LICENSE.txt', 'README.md', 'tokenizer.model', 'additional_chat_templates/tool.jinja'])
      writeFileSync(path.join(model, name), name);
    symlinkSync(path.join(model, 'README.md'), path.join(model, 'NOTICE'));
    const out = newPath();
    await quantize(model, out);
    expect(list(out)).toEqual(
      [
        ...FILES,
        ...WEIGHTS,
        'LICENSE.txt',
        'NOTICE',
        'README.md',
        'additional_chat_templates',
        'tokenizer.model',
      ].sort(),
    );
    expect(list(path.join(out, 'additional_chat_templates'))).toEqual(['tool.jinja']);
    expect(lstatSync(path.join(out, 'NOTICE')).isFile()).toBe(true);
  });

  test('a head that differs from the embedding, although the config ties them', async () => {
    const model = newModel();
    const config = path.join(model, 'config.json');
    const stated = JSON.parse(readFileSync(config, 'utf8')) as object;
    writeFileSync(config, JSON.stringify({ ...stated, tie_word_embeddings: true }));
    const [out, untied] = [newPath(), newPath()];
    await quantize(model, out);
    await quantize(MODEL, untied);
    for (const name of ['config.json', 'model.safetensors'])
      expect(readFileSync(path.join(out, name), 'utf8')).toBe(readFileSync(path.join(untied, name), 'utf8'));
  });

  test('nothing else: other files, folders, pipes', async () => {
    const model = newModel();
    symlinkSync('/etc/hostname', path.join(model, 'notes.txt'));
    writeFileSync(path.join(model, 'secrets.json'), '{}');
    mkdirSync(path.join(model, 'vocab.json'));
    symlinkSync('/', path.join(model, 'merges.txt'));
    symlinkSync(newPath(), path.join(model, 'vocab.txt'));
    execFileSync('mkfifo', [path.join(model, 'pipe')]);
    symlinkSync('pipe', path.join(model, 'added_tokens.json'));
    const out = newPath();
    await quantize(model, out);
    expect(list(out)).toEqual([...FILES, ...WEIGHTS].sort());
  });

  test('no file of any size', async () => {
    const model = newModel();
    writeFileSync(path.join(model, 'README.md'), '');
    truncateSync(path.join(model, 'README.md'), 1e9);
    await expect(quantize(model, newPath())).rejects.toMatchObject({ code: 'invalid_model', param: 'README.md' });
  });
});
