import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import type { TlsFiles } from './transport';

/**
 * Reads and checks the TLS files. Throws an Error that names the bad file, where uWebSockets.js would only close every
 * connection.
 */
export function checkTls({ keyFile, certFile, passphrase }: TlsFiles): {
  key: Buffer;
  cert: Buffer;
  passphrase?: string;
} {
  const key = read(keyFile, '--ssl-keyfile');
  const cert = read(certFile, '--ssl-certfile');
  check(() => createSecureContext({ cert }), `--ssl-certfile: expected a certificate in PEM form, got '${certFile}'`);
  check(
    () => createSecureContext({ key, ...(passphrase === undefined ? {} : { passphrase }) }),
    `--ssl-keyfile: expected a private key in PEM form${passphrase === undefined ? '' : ' and its password'}, got '${keyFile}'`,
  );
  check(
    () => createSecureContext({ key, cert, ...(passphrase === undefined ? {} : { passphrase }) }),
    `--ssl-keyfile: expected the key of the certificate '${certFile}', got '${keyFile}'`,
  );
  return { key, cert, ...(passphrase === undefined ? {} : { passphrase }) };
}

function read(path: string, flag: string): Buffer {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new Error(
      `${flag}: expected a readable file, got '${path}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
      { cause: error },
    );
  }
}

function check(work: () => unknown, message: string): void {
  try {
    work();
  } catch (error) {
    const { reason, message: detail } = error as Error & { reason?: string };
    throw new Error(`${message} (${reason ?? detail})`, { cause: error });
  }
}
