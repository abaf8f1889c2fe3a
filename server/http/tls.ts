import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import type { TlsFiles } from './transport';

/** @throws Error that names the file at fault: uWebSockets.js would only close every connection. */
export function checkTls({ keyFile, certFile, passphrase }: TlsFiles): {
  key: Buffer;
  cert: Buffer;
  passphrase?: string;
} {
  const key = read(keyFile, '--ssl-keyfile');
  const cert = read(certFile, '--ssl-certfile');
  attempt(() => createSecureContext({ cert }), `--ssl-certfile: expected a certificate in PEM form, got '${certFile}'`);
  attempt(
    () => createSecureContext({ key, ...(passphrase === undefined ? {} : { passphrase }) }),
    `--ssl-keyfile: expected a private key in PEM form${passphrase === undefined ? '' : ' and its password'}, got '${keyFile}'`,
  );
  attempt(
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
      `${flag}: expected a file that can be read, got '${path}' (${(error as NodeJS.ErrnoException).code ?? 'unreadable'})`,
      { cause: error },
    );
  }
}

function attempt(work: () => unknown, message: string): void {
  try {
    work();
  } catch (error) {
    const { reason, message: why } = error as Error & { reason?: string };
    throw new Error(`${message} (${reason ?? why})`, { cause: error });
  }
}
