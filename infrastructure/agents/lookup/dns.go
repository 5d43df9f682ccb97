package lookup

import (
	"fmt"
	"net/netip"
	"strings"
)

// WhyUDP says why an agent needs UDP whose API is on that host, for
// [ports.PlanFragment]: a name has to be resolved, which the resolvers of libc
// and of runtimes do by UDP. It returns "" for an address and for localhost,
// which /etc/hosts has.
func WhyUDP(host string) string {
	if _, err := netip.ParseAddr(host); err == nil || strings.EqualFold(host, "localhost") {
		return ""
	}
	return fmt.Sprintf("the name %s of the model's API is resolved by DNS", host)
}
