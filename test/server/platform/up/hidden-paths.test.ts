import path from 'node:path';
import { hiddenPaths } from '../../../../server/platform/up/hidden-paths';
import { defaultUpOptions } from '../../../../server/platform/up/options';
import { ROOT } from '../../access/support';

test('the files and folders that the service was configured with are hidden', () => {
  const options = {
    ...defaultUpOptions({}),
    tls: { keyFile: '/opt/tls/key.pem', certFile: 'cert.pem' },
    bootstrapPasswordFile: '/opt/password',
    configFile: '/opt/capstan.yaml',
    databaseUrl: 'postgres://db/capstan?sslmode=verify-full&sslkey=/opt/db.key',
  };
  expect(hiddenPaths(options, ['/srv/models', '/srv/models/inner', '/srv/models2'])).toEqual([
    '/opt/tls/key.pem',
    path.resolve('cert.pem'),
    '/opt/password',
    '/opt/capstan.yaml',
    '/opt/db.key',
    '/srv/models',
    '/srv/models2',
  ]);
});

test('a data root that holds the runtime or Node.js stays visible, because nothing could run without it', () => {
  const roots = [path.dirname(ROOT), path.dirname(process.execPath), '/srv/models'];
  expect(hiddenPaths(defaultUpOptions({}), roots)).toEqual(['/srv/models']);
});
