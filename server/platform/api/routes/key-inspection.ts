import { AccessError, parseKey } from 'capstan/internal';
import { keyView } from './key-access';
import { KeyInspection, KeyText } from '../objects';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'POST',
    path: '/api/v1/keys/inspect',
    summary: 'Check whether a text is a key, and which (administrators)',
    tag: 'keys',
    auth: 'any',
    body: KeyText,
    responses: { 200: KeyInspection },
    handle: async ({ context: { store }, actor, attempts, body }) => {
      if (!actor.isAdmin) throw new ApiProblem('forbidden', 'only administrators may do this');
      // Every check counts as an attempt, so that keys cannot be guessed.
      attempts.check(actor.userId);
      attempts.count(actor.userId);
      const publicId = parseKey(body.key) ?? null;
      const key =
        publicId === null
          ? undefined
          : await store.getKey(publicId).catch((error: unknown) => {
              if (error instanceof AccessError && error.code === 'not_found') return undefined;
              throw error;
            });
      return {
        status: 200,
        body: {
          well_formed: publicId !== null,
          public_id: publicId,
          key: key === undefined ? null : keyView(key),
        } satisfies KeyInspection,
      };
    },
  }),
];
