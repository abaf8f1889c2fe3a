/** The deployments of its owner that a key may call. Null: all. */
export type Reach = readonly string[] | null;

/** Whether a key may call a deployment of its owner. */
export function mayCall(reach: Reach, deploymentId: string): boolean {
  return reach === null || reach.includes(deploymentId);
}

/** Whether a key may have what another key with the reach `made` has made: only if it may call all of these. */
export function covers(reach: Reach, made: Reach): boolean {
  return reach === null || (made !== null && made.every((id) => reach.includes(id)));
}
