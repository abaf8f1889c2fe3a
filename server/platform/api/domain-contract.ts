/**
 * Compile-time check that the wire types of objects.ts and the types of the domain have the same fields. The domain
 * does not import the API, so this file is what keeps the two from drifting apart.
 */
import type { CanaryView } from '../canary/canaries';
import type { Capacity } from '../deployments/capacity';
import type { ImageView } from '../deployments/catalog';
import type { DeploymentEdit } from '../deployments/commands';
import type { ContainerEdit, ContainerView, DeployPreview, NewContainer } from '../deployments/containers';
import type { DataSourceDetails, DataSourceEdit, DataSourceView, NewDataSourceSpec } from '../deployments/data-sources';
import type { NewPull, PullAgain } from '../deployments/data-pulls';
import type { PullPreview, PullQuestion } from '../deployments/pull-preview';
import type { NewDeployment } from '../deployments/deployments';
import type { OwnerView } from '../deployments/owner-views';
import type { RuntimeOptions } from '../deployments/runtime-options';
import type { Binding, BindingView, Compute, VersionSpec } from '../deployments/spec';
import type { NewVersion } from '../deployments/versions';
import type { DeploymentEvent, DeploymentView, Reason, ReplicaView, VersionView } from '../deployments/views';
import type { UpstreamVersionView } from '../upstreams/upstream-versions';
import type { WebhookDelivery, WebhookView } from '../webhooks/webhooks';
import type { Static } from './json-schema';
import type * as Wire from './objects';

/** `T` without modifiers and intersections, at any depth. */
type Plain<T> = T extends readonly (infer I)[]
  ? Plain<I>[]
  : T extends object
    ? { -readonly [K in keyof T]: Plain<T[K]> }
    : T;
type Same<A, B> = (<T>() => T extends Plain<A> ? 1 : 2) extends <T>() => T extends Plain<B> ? 1 : 2 ? true : false;
type Expect<T extends true> = T;

/** The wire schema leaves the state of a replica open. */
type ReplicaOnWire = Omit<ReplicaView, 'state'> & { state: string };
type VersionOnWire = Omit<VersionView, 'replicas'> & { replicas: ReplicaOnWire[] };

export type WireMatchesDomain = [
  Expect<Same<Wire.Owner, OwnerView>>,
  Expect<Same<Wire.Compute, Compute>>,
  Expect<Same<Wire.Capacity, Capacity>>,
  Expect<Same<Wire.Binding, Binding>>,
  Expect<Same<Wire.BindingView, BindingView>>,
  Expect<Same<Wire.Image, ImageView>>,
  Expect<Same<Wire.DataSource, DataSourceView>>,
  Expect<Same<Wire.DataSourceDetails, DataSourceDetails>>,
  Expect<Same<Wire.DataSourceEdit, DataSourceEdit>>,
  Expect<Same<Static<typeof Wire.NewDataSource>, NewDataSourceSpec>>,
  Expect<Same<Static<typeof Wire.NewDataPull>, NewPull>>,
  Expect<Same<Static<typeof Wire.DataPullAgain>, PullAgain>>,
  Expect<Same<Static<typeof Wire.DataPullQuestion>, PullQuestion & { source_id?: string }>>,
  Expect<Same<Wire.DataPullPreview, PullPreview>>,
  Expect<Same<Wire.RuntimeOptions, RuntimeOptions>>,
  Expect<Same<Wire.VersionSpec, VersionSpec>>,
  Expect<Same<Wire.NewDeployment, NewDeployment>>,
  Expect<Same<Wire.DeploymentEdit, DeploymentEdit>>,
  Expect<Same<Wire.NewVersion, NewVersion>>,
  Expect<Same<Wire.Canary, CanaryView>>,
  Expect<Same<Wire.UpstreamVersion, UpstreamVersionView>>,
  Expect<Same<Wire.Reason, Reason>>,
  Expect<Same<Wire.Replica, ReplicaOnWire>>,
  Expect<Same<Wire.Version, VersionOnWire>>,
  Expect<Same<Omit<Wire.Deployment, 'url' | 'api_url'>, DeploymentView>>,
  Expect<Same<Wire.DeploymentEvent, DeploymentEvent>>,
  Expect<Same<Omit<Wire.Container, 'url'>, Omit<ContainerView, 'slug'>>>,
  Expect<Same<Wire.NewContainer, NewContainer>>,
  Expect<Same<Wire.ContainerEdit, ContainerEdit>>,
  Expect<Same<Wire.DeployPreview, DeployPreview>>,
  Expect<Same<Wire.Webhook, WebhookView>>,
  Expect<Same<Wire.WebhookDelivery, WebhookDelivery>>,
];
