const KEY = 'capstan.session';
/** Used where the browser allows no storage. The session then ends with the page. */
let inMemory: string | null = null;

/**
 * The secret of the session, in the storage of this origin. Other ports of the host share the cookie, but not the
 * storage. Read for each request, because another tab may have signed in.
 */
export function sessionSecret(): string | null {
  try {
    return localStorage.getItem(KEY) ?? inMemory;
  } catch {
    return inMemory;
  }
}

export function setSessionSecret(secret: string | null): void {
  inMemory = secret;
  try {
    if (secret === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, secret);
  } catch {
    // The secret stays in memory.
  }
}
