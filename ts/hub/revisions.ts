/** The parts of a cached revision that name it. */
interface Named {
  commit: string;
  /** Branches and tags of the commit. */
  revisions: readonly string[];
}

/** The shortest start of a commit that names it, as in Git. */
const COMMIT_START = /^[0-9a-f]{7,40}$/;

/**
 * Returns the cached revision that a branch, a tag, a commit or the start of a commit names, or undefined. A branch or
 * tag comes first. The start of several commits names none.
 */
export function findRevision<Revision extends Named>(
  revisions: readonly Revision[],
  wanted: string,
): Revision | undefined {
  const byName = revisions.find((revision) => revision.revisions.includes(wanted));
  if (byName !== undefined) return byName;
  const matches = COMMIT_START.test(wanted) ? revisions.filter(({ commit }) => commit.startsWith(wanted)) : [];
  return matches.length === 1 ? matches[0] : undefined;
}
