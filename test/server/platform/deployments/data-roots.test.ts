/** A data source inside another one, whose folder a program replaces by a link to a folder of someone else. */
import fs from 'node:fs';
import path from 'node:path';
import type { Launch } from '../../../../server/platform/control/launch';
import { replicaSpec } from '../../../../server/platform/control/replica-spec';
import { DataMeasurer } from '../../../../server/platform/deployments/data-measurer';
import { resolveInside, sourceFolder } from '../../../../server/platform/deployments/data-roots';
import { HomeSnapshots } from '../../../../server/platform/deployments/home-snapshots';
import { PrefixCaches } from '../../../../server/platform/deployments/prefix-caches';
import { makeFolder, removeFolders } from '../../access/support';

const REASON = 'it was deleted, moved or replaced by a link';
let root: string;
let inner: string;
let snapshots: HomeSnapshots;
let prefixCaches: PrefixCaches;

beforeEach(() => {
  root = fs.realpathSync(makeFolder());
  inner = path.join(root, 'data', 'workspace', 'inner');
  snapshots = new HomeSnapshots(path.join(root, 'homes'));
  prefixCaches = new PrefixCaches(path.join(root, 'prefix-caches'));
  for (const folder of [inner, path.join(root, 'data', 'of-others')]) fs.mkdirSync(folder, { recursive: true });
});
afterAll(() => removeFolders());

function swap(): void {
  fs.rmdirSync(inner);
  fs.symlinkSync(path.join(root, 'data', 'of-others'), inner);
}

const roots = (): string[] => [path.join(root, 'data')];
const specOf = (mode: 'ro' | 'rw') => {
  const launch = {
    folders: [{ mount: 'input0', mode, path: inner }],
    runtimeArgs: [] as string[],
    modelName: null,
  } as Launch;
  return replicaSpec(launch, { dataRoots: roots(), snapshots, prefixCaches }, { level: 'L2', reason: '' });
};

test('is its own folder before that', async () => {
  expect(sourceFolder(inner, roots())).toBe(inner);
  expect(specOf('ro').inputs).toEqual([{ mount: 'input0', path: inner }]);
  await snapshots.takeInside('ver_1', inner, roots());
});

test('is neither mounted, used as a home, copied nor measured afterwards', async () => {
  swap();
  expect(resolveInside(inner, roots())).toBe(path.join(root, 'data', 'of-others'));
  for (const mode of ['ro', 'rw'] as const) expect(() => specOf(mode)).toThrow(REASON);
  await expect(snapshots.takeInside('ver_1', inner, roots())).rejects.toThrow(REASON);
  const pending = [{ id: 'src_1', locator: '', path: inner }];
  const saveMeasure = jest.fn(() => Promise.resolve());
  const measurer = new DataMeasurer({
    store: { findUnmeasured: () => Promise.resolve(pending.shift()), saveMeasure },
    dataRoots: roots(),
    log: { warn: () => {} },
  });
  measurer.notify();
  await measurer.settled();
  expect(saveMeasure.mock.calls).toEqual([
    [expect.objectContaining({ id: 'src_1' }), { error: expect.stringContaining(REASON) }],
  ]);
});
