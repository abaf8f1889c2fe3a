interface Room {
  numInside: number;
  readonly waiting: Set<() => void>;
}

/** Bounds how many lines of batches are in progress in each deployment. */
export class LinePlaces {
  readonly #capacityOf: (deploymentId: string) => number;
  readonly #rooms = new Map<string, Room>();

  /** @param capacityOf One line may enter in any case, because it wakes the deployment. */
  constructor(capacityOf: (deploymentId: string) => number) {
    this.#capacityOf = capacityOf;
  }

  /**
   * Resolves when there is a place, or when `signal` is aborted. Call the returned function when the line has ended.
   */
  async enter(deploymentId: string, signal: AbortSignal): Promise<() => void> {
    const room = this.#rooms.get(deploymentId) ?? { numInside: 0, waiting: new Set() };
    this.#rooms.set(deploymentId, room);
    await new Promise<void>((resolve) => {
      const enter = (): void => {
        signal.removeEventListener('abort', enter);
        room.waiting.delete(enter);
        room.numInside++;
        resolve();
      };
      room.waiting.add(enter);
      signal.addEventListener('abort', enter, { once: true });
      if (signal.aborted) enter();
      else this.#admit(deploymentId, room);
    });
    let isInside = true;
    return () => {
      if (!isInside) return;
      isInside = false;
      room.numInside--;
      this.#admit(deploymentId, room);
      if (room.numInside === 0 && this.#rooms.get(deploymentId) === room) this.#rooms.delete(deploymentId);
    };
  }

  #admit(deploymentId: string, room: Room): void {
    const capacity = Math.max(1, this.#capacityOf(deploymentId));
    for (const enter of room.waiting) {
      if (room.numInside >= capacity) return;
      enter();
    }
  }
}
