import type { Capacity, DataSource, Image } from '../../api/objects';
import { usePages, useResource } from '../api/resource';
import type { SpecChoices } from './spec-form';

export function useSpecChoices(): SpecChoices {
  return {
    images: usePages<Image>('/images?limit=100'),
    sources: usePages<DataSource>('/data-sources?limit=100'),
    capacity: useResource<Capacity>('/compute'),
  };
}

/** The default image of a form: the newest built-in runtime if there is one. */
export function firstImage(images: readonly Image[]): string {
  return (images.find(({ type }) => type === 'builtin-runtime') ?? images[0])?.id ?? '';
}

export function imageName(images: readonly Image[] | undefined, id: string): string {
  const image = images?.find((candidate) => candidate.id === id);
  return image === undefined ? id : `${image.name} ${image.version}`;
}
