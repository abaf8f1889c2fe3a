/** One page of a list. `next` is the cursor of the following page, null on the last page. */
export interface Page<T> {
  data: T[];
  next: string | null;
}
