/** Pages that share one chunk. It is loaded when the first of them is opened. */
export { AccountPage } from '../pages/account/account';
export { AuditPage } from '../pages/audit';
export { ContainerPage } from '../pages/containers/container';
export { ContainerDeployPage } from '../pages/containers/deploy';
export { ContainerEditPage } from '../pages/containers/edit';
export { ContainerListPage } from '../pages/containers/list';
export { ContainerNewPage } from '../pages/containers/new';
export { DataPage } from '../pages/data';
export { DeploymentNewPage } from '../pages/deployments/new';
export { VersionNewPage } from '../pages/deployments/version-new';
export { InvitationPage } from '../pages/invitation';
export { OrgListPage } from '../pages/orgs/list';
export { OrgPage } from '../pages/orgs/org';
export { QuotasPage } from '../pages/quotas';
export { ResetPage } from '../pages/reset';
export { SetupPage } from '../pages/setup';
export { WebhooksPage } from '../pages/webhooks/webhooks';
