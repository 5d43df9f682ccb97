package domain_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestModelGateway(t *testing.T) {
	token := func(value string) []domain.EnvRule {
		return []domain.EnvRule{
			{Name: "KEY", Value: value, Literal: true, Secret: true}, {Name: "URL", Value: "http://127.0.0.1:1", Literal: true},
		}
	}
	plain := domain.NewSandboxPlan("p").WithConnectTCP(443).WithEnv(domain.EnvRule{Name: "PATH", Value: "/bin", Literal: true})
	named := plain.WithModelGateway(0, token("")...)
	open := plain.WithModelGateway(40123, token("geheim")...)
	other := plain.WithModelGateway(40124, token("anders")[:1]...)

	for name, p := range map[string]domain.SandboxPlan{"named": named, "open": open, "other": other} {
		require.NoError(t, p.Validate(), name)
		require.Equal(t, named.Digest(), p.Digest(), "neither port nor variables count")
		require.NotEqual(t, plain.Digest(), p.Digest(), "but that there is a gateway")
		require.Equal(t, named.Grants(), p.Grants())
		require.Contains(t, p.Grants(), "tcp connect model gateway")
		require.Equal(t, []uint16{443}, p.ConnectTCP())
		require.Contains(t, p.String(), "tcp connect      443 and the model gateway\n")
		require.Contains(t, p.String(), "PATH KEY")
		for _, secret := range []string{"geheim", "anders", "40123", "40124", "127.0.0.1"} {
			require.NotContains(t, p.String()+strings.Join(p.Grants(), "\n"), secret)
		}
		_, ok := p.ModelGateway()
		require.True(t, ok)
	}
	require.Contains(t, domain.NewSandboxPlan("p").WithModelGateway(0).String(), "tcp connect      the model gateway\n")
	require.Empty(t, named.ReachableDestinations(), "a port that is not open yet is none")
	here := netip.MustParseAddrPort("127.0.0.1:40123")
	require.Equal(t, []netip.AddrPort{here}, open.ReachableDestinations())
	require.Empty(t, open.Destinations(), "they are what was asked for by address")
	for _, p := range []domain.SandboxPlan{named, open} {
		require.True(t, p.Requests(domain.PropertyDestinations))
		require.False(t, p.WithoutDestinations().Requests(domain.PropertyDestinations))
		require.Equal(t, plain.Digest(), p.WithoutDestinations().Digest())
	}
	require.Equal(t, token("geheim"), open.GatewayEnv())
	require.Empty(t, plain.GatewayEnv())
	port, _ := open.ModelGateway()
	require.Equal(t, uint16(40123), port)
	_, ok := plain.ModelGateway()
	require.False(t, ok)
	require.Empty(t, plain.ReachableDestinations())

	require.Equal(t, []string{"PATH=/bin", "KEY=geheim", "URL=http://127.0.0.1:1"}, open.Environ(nil))
	require.Equal(t, []string{"PATH=/bin", "KEY=geheim", "URL=http://127.0.0.1:1"},
		open.WithEnv(domain.EnvRule{Name: "KEY", Value: "the real one", Literal: true}).Environ(nil), "the gateway's come last")

	var invalid *domain.InvalidError
	require.ErrorAs(t, domain.Unconfined("x").WithModelGateway(1).Validate(), &invalid)
	require.ErrorAs(t, plain.WithModelGateway(1, domain.EnvRule{Name: "A=B"}).Validate(), &invalid)
}

func TestGatewayTraffic(t *testing.T) {
	require.Equal(t, domain.GatewayTraffic{Requests: 1, Refused: 2, Failed: 3},
		domain.GatewayTraffic{Requests: 5, Refused: 5, Failed: 5}.Sub(domain.GatewayTraffic{Requests: 4, Refused: 3, Failed: 2}))
}
