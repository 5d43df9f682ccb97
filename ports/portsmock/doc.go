// Package portsmock holds generated mocks of the ports, for tests that are
// about the order of calls. Where behaviour matters, the fakes of portstest are
// the better choice. It may import ports, domain and gomock, and is imported
// by tests alone.
package portsmock

//go:generate go tool mockgen -source=../agent.go -destination=agent.go -package portsmock -write_package_comment=false -mock_names AgentAdapter=AgentAdapter,InteractiveAgent=InteractiveAgent,Parser=Parser
//go:generate go tool mockgen -source=../command.go -destination=command.go -package portsmock -write_package_comment=false -mock_names CommandRunner=CommandRunner
//go:generate go tool mockgen -source=../egress.go -destination=egress.go -package portsmock -write_package_comment=false -mock_names EgressProxy=EgressProxy,Egress=Egress
//go:generate go tool mockgen -source=../enforcer.go -destination=enforcer.go -package portsmock -write_package_comment=false -mock_names SandboxEnforcer=SandboxEnforcer,Confinement=Confinement,KillGroup=KillGroup,Supervised=Supervised,Supervisor=Supervisor,ResourceGrouped=ResourceGrouped,ResourceGroup=ResourceGroup
//go:generate go tool mockgen -source=../store.go -destination=store.go -package portsmock -write_package_comment=false -mock_names SessionStore=SessionStore,SessionLog=SessionLog
//go:generate go tool mockgen -source=../gateway.go -destination=gateway.go -package portsmock -write_package_comment=false -mock_names ModelGateway=ModelGateway,Gateway=Gateway
//go:generate go tool mockgen -source=../login.go -destination=login.go -package portsmock -write_package_comment=false -mock_names LoginAgent=LoginAgent,LoginStore=LoginStore
//go:generate go tool mockgen -source=../policy.go -destination=policy.go -package portsmock -write_package_comment=false -mock_names PolicySource=PolicySource
//go:generate go tool mockgen -source=../session.go -destination=session.go -package portsmock -write_package_comment=false -mock_names StructuredSessionFactory=StructuredSessionFactory,StructuredSession=StructuredSession,Turn=Turn
//go:generate go tool mockgen -source=../terminal.go -destination=terminal.go -package portsmock -write_package_comment=false -mock_names TerminalSessionFactory=TerminalSessionFactory,TerminalSession=TerminalSession
