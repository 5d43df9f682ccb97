package cli

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestByteSize(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "1": 1, "2K": 2 << 10, "512M": 512 << 20, "4g": 4 << 30, "1T": 1 << 40} {
		var b byteSize
		require.NoError(t, b.Set(text), text)
		require.Equal(t, byteSize(want), b, text)
	}
	for _, text := range []string{"", "M", "x", "-1", "1.5G", "1P", "1 M", "99999999T", "18446744073709551616", "MM"} {
		var b byteSize
		require.Error(t, b.Set(text), text)
	}
}

// commands calls f with every command there is.
func commands(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		commands(sub, f)
	}
}

// A help text that says "--agent claude" reads as if nothing else could follow.
func TestFlagsNameTheirValues(t *testing.T) {
	seen := 0
	commands((&app{}).root(), func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal != "" || f.Value.Type() == "bool" {
				return
			}
			seen++
			name, usage := pflag.UnquoteUsage(f)
			require.Regexp(t, `^[A-Z]`, name, "%s --%s: %s", cmd.CommandPath(), f.Name, usage)
			require.NotRegexp(t, `[a-z]`, name, "%s --%s", cmd.CommandPath(), f.Name)
		})
	})
	require.Greater(t, seen, 100)
}

// What one command takes, every one takes that can print JSON.
func TestJSONHasTwoNamesEverywhere(t *testing.T) {
	var with []string
	commands((&app{}).root(), func(cmd *cobra.Command) {
		output, short := cmd.Flags().Lookup("output"), cmd.Flags().Lookup("json")
		require.Equal(t, output == nil, short == nil, cmd.CommandPath())
		if output == nil {
			return
		}
		with = append(with, cmd.Name())
		require.NoError(t, cmd.ParseFlags([]string{"--json"}))
		require.Equal(t, "json", output.Value.String(), cmd.CommandPath())
		require.NoError(t, cmd.ParseFlags([]string{"--output", "text"}))
		require.Equal(t, "false", short.Value.String(), "the last one counts")
		require.NoError(t, cmd.ParseFlags([]string{"--json=false", "--output=json"}))
		require.Equal(t, "true", short.Value.String())
		require.Error(t, cmd.ParseFlags([]string{"--json=yes please"}))
	})
	require.Subset(t, with, []string{"run", "plan", "explain", "doctor", "verify", "demo", "list", "show", "replay"})
}
