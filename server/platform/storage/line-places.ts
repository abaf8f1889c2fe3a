/** Bounds how many lines of batches are in progress in each deployment. */
export class LinePlaces {
  readonly #capacityOf: (deploymentId: string) => number;
  /** Lines in progress. */
  readonly #numInside = new Map<string, number>();

  /** @param capacityOf One line may enter in any case, because it wakes the deployment. */
  constructor(capacityOf: (deploymentId: string) => number) {
    this.#capacityOf = capacityOf;
  }

  /** Returns undefined if there is no place. Call the returned function once, when the line has ended. */
  enter(deploymentId: string): (() => void) | undefined {
    const numInside = this.#numInside.get(deploymentId) ?? 0;
    if (numInside >= Math.max(1, this.#capacityOf(deploymentId))) return undefined;
    this.#numInside.set(deploymentId, numInside + 1);
    return () => {
      const numLeft = this.#numInside.get(deploymentId)! - 1;
      if (numLeft === 0) this.#numInside.delete(deploymentId);
      else this.#numInside.set(deploymentId, numLeft);
    };
  }
}
