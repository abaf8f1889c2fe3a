import type { Target } from '../gateway/targets';
import type { ModelPrice } from './money-rows';

/** The price of every deployment that has none. */
const ANY_MODEL = '*';

/** A price, and the name under which its costs are shown. */
export interface FoundPrice {
  readonly price: ModelPrice;
  readonly model: string;
}

/** Finds the price of a request: the most specific one. */
export class PriceList {
  readonly #byModel: ReadonlyMap<string, ModelPrice>;

  constructor(prices: readonly ModelPrice[]) {
    this.#byModel = new Map(prices.map((price) => [price.model, price]));
  }

  /** @param inner A model within the deployment. Names of clients that have no price are ignored. */
  find(
    { deploymentId, name }: Pick<Target, 'deploymentId' | 'name'>,
    inner: string | undefined,
  ): FoundPrice | undefined {
    const label = name ?? deploymentId;
    if (inner !== undefined) {
      const price = this.#byModel.get(`${deploymentId}/${inner}`) ?? this.#byModel.get(`${label}/${inner}`);
      if (price !== undefined) return { price, model: `${label}/${inner}` };
    }
    const price = this.#byModel.get(deploymentId) ?? this.#byModel.get(label) ?? this.#byModel.get(ANY_MODEL);
    return price === undefined ? undefined : { price, model: label };
  }

  /** Whether the price depends on the model that a request names. */
  hasInner({ deploymentId, name }: Pick<Target, 'deploymentId' | 'name'>): boolean {
    for (const model of this.#byModel.keys())
      if (model.startsWith(`${deploymentId}/`) || model.startsWith(`${name ?? deploymentId}/`)) return true;
    return false;
  }
}
