package lookup

import (
	"fmt"
	"slices"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// LoginNeeds returns what an agent needs to reach its API on that host and port with
// a login of its own, which is renewed on another host: by name through a proxy, or
// else directly. An API at an address, or on this machine, has no name for a proxy.
func LoginNeeds(kind domain.AgentKind, host string, port uint16, renewal string) (byName, direct ports.PlanFragment, err error) {
	hosts := []string{renewal}
	if WhyUDP(host) == "" {
		byName.ConnectTCP = []uint16{port}
	} else {
		api, err := domain.EgressHost(host, port)
		if err != nil {
			return byName, direct, err
		}
		hosts, byName.Domains = append(hosts, host), []domain.EgressDomain{api}
	}
	at, err := domain.EgressHost(renewal, 443)
	if err != nil {
		return byName, direct, err
	}
	byName.Domains = append(byName.Domains, at)
	byName.Notes = []string{fmt.Sprintf("%s: its login is renewed at %s; what it reaches by name is %q and nothing else that the policy does not add", kind, renewal, hosts)}
	direct = ports.PlanFragment{
		ConnectTCP: []uint16{port, 443}, UDP: WhyUDP(renewal),
		Notes: []string{fmt.Sprintf("%s: TCP port 443 of any host is open, because its login is renewed at %s", kind, renewal)},
	}
	slices.Sort(direct.ConnectTCP)
	direct.ConnectTCP = slices.Compact(direct.ConnectTCP)
	return byName, direct, nil
}
