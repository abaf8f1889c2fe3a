import { ApiProblem } from './problem';

/** Most logs and events that one user follows at once. Each follower reads the database from time to time. */
const MAX_FOLLOWERS = 100;
const followers = new Map<string, number>();

/** Counts a follower. Returns a function that removes it. Throws ApiProblem when the user has too many. */
export function addFollower(userId: string): () => void {
  const num = followers.get(userId) ?? 0;
  if (num >= MAX_FOLLOWERS)
    throw new ApiProblem('too_many_attempts', `expected at most ${MAX_FOLLOWERS} followed logs and events at once`, {
      headers: { 'Retry-After': '10' },
    });
  followers.set(userId, num + 1);
  return () => {
    const left = (followers.get(userId) ?? 1) - 1;
    if (left === 0) followers.delete(userId);
    else followers.set(userId, left);
  };
}
