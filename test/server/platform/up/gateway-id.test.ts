import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadGatewayId } from '../../../../server/platform/up/gateway-id';
import { makeFolder, removeFolders } from '../../access/support';

afterAll(removeFolders);

test('keeps the id of a data directory across starts', () => {
  const folder = makeFolder();
  const id = loadGatewayId(folder);
  expect(id).toMatch(/^gtw_/);
  expect(loadGatewayId(folder)).toBe(id);
  expect(loadGatewayId(makeFolder())).not.toBe(id);
});

test('replaces an invalid id', () => {
  const folder = makeFolder();
  writeFileSync(join(folder, 'gateway.id'), '');
  const id = loadGatewayId(folder);
  expect(readFileSync(join(folder, 'gateway.id'), 'utf8')).toBe(`${id}\n`);
});
