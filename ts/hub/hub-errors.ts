import type { IncomingHttpHeaders } from 'node:http';
import { CapstanError, type CapstanErrorCode } from '../errors';
import type { HubSettings } from './settings';

/** What a request is for, in messages. */
export interface Purpose {
  repository: string;
  revision: string;
  file?: string;
}

/** Explains a response that no second attempt would change. Status 0: no request is allowed. */
export function explainFailure(
  status: number,
  headers: IncomingHttpHeaders,
  { repository, revision, file }: Purpose,
  { endpoint, token, tokenSource: variable, isOffline }: HubSettings,
): CapstanError {
  const { host } = endpoint;
  const error = (code: CapstanErrorCode, message: string): CapstanError => new CapstanError(code, message);
  if (isOffline)
    return error(
      'download_failed',
      `${repository} is not complete in the cache, and HF_HUB_OFFLINE forbids requests. ` +
        `Unset it, or download the model first: capstan pull ${repository}`,
    );
  const setToken =
    token === undefined ? `Set ${variable} to a token` : `Check that the token in ${variable} is valid and has access`;
  const code = headers['x-error-code'];
  if (code === 'GatedRepo')
    return error(
      'access_denied',
      `${repository} is gated: its owner grants access. Request it at ${endpoint.origin}/${repository}. ` +
        `${token === undefined ? `Then set ${variable} to a token of that account` : setToken}.`,
    );
  if (code === 'RevisionNotFound')
    return error('model_not_found', `${repository} has no revision "${revision}" at ${host}. Check the name after @.`);
  if (code === 'EntryNotFound')
    return error('model_not_found', `${repository} has no file ${file ?? ''} at revision "${revision}" of ${host}.`);
  if (code === 'RepoNotFound' || status === 404)
    return error(
      'model_not_found',
      `there is no model ${repository} at ${host}, or it is private. Check the name. ` +
        `For a private model: ${setToken.charAt(0).toLowerCase()}${setToken.slice(1)}.`,
    );
  if (status === 401 || status === 403)
    return error('access_denied', `${host} denies access to ${repository} (status ${status}). ${setToken}.`);
  return error('download_failed', `${repository}: expected a response from ${host} with status 200, got ${status}.`);
}

const REASONS: Readonly<Record<string, string>> = {
  ENOTFOUND: 'the name is not known',
  EAI_AGAIN: 'the name server does not answer',
  ECONNREFUSED: 'the connection was refused',
  ECONNRESET: 'the connection was cut',
  ETIMEDOUT: 'the connection timed out',
  EHOSTUNREACH: 'there is no route to it',
  ENETUNREACH: 'there is no network',
};

/** Explains a connection that failed. Shows only the host: the path of a storage link is a secret. */
export function explainNetwork(url: URL, error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException;
  const reason = REASONS[code ?? ''] ?? code ?? message;
  return (
    `cannot reach ${url.host} (${reason}). ` +
    'Check the network and HTTPS_PROXY, or set HF_ENDPOINT to a mirror, or pass a folder with the model'
  );
}
