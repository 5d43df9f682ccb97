package gateway

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// found is a number that the scanner found.
type found struct {
	path  [maxPath]name
	depth int
	value int64
}

func scan(text []byte) []found {
	var all []found
	s := scanner{number: func(path []name, value int64) {
		f := found{depth: len(path), value: value}
		copy(f.path[:], path)
		all = append(all, f)
	}}
	for _, b := range text {
		s.byte(b)
	}
	return all
}

func TestScanner(t *testing.T) {
	for text, want := range map[string][]found{
		`{"usage":{"input_tokens":7}}`:                           {{[maxPath]name{nameUsage, nameInput}, 2, 7}},
		`{ "usage" : { "a":[{"b":1}], "output_tokens" : 8 , } }`: {{[maxPath]name{nameUsage, nameOther, nameOther, nameOther}, 4, 1}, {[maxPath]name{nameUsage, nameOutput}, 2, 8}},
		`{"us\u0061ge":{"x":1}}`:                                 {{[maxPath]name{nameOther, nameOther}, 2, 1}},
		`{"a":"usage","usage":{"input_tokens":"9"}}`:             nil,
		`{"usage":{"a":-1,"b":1.5,"c":1e3,"d":true,"e":null}}`:   nil,
		`[1,2,[3]]`:                       nil,
		`{"a":{"b":{"c":{"d":{"e":1}}}}}`: nil,
		`{"an_extremely_long_name_that_nobody_would_ever_use":12}`: {{[maxPath]name{nameOther}, 1, 12}},
		`}}]]{"usage":3}`: {{[maxPath]name{nameUsage}, 1, 3}},
		`123`:             nil,
		``:                nil,
	} {
		require.Equal(t, want, scan([]byte(text)), text)
	}
}

// Whatever comes, the scanner neither fails nor grows; and the numbers of a text
// that is JSON are those that a decoder finds.
func FuzzScanner(f *testing.F) {
	f.Add([]byte(`{"usage":{"input_tokens":7,"output_tokens":8}}`))
	f.Add([]byte(`{"usage":{"input_tokens":7},"message":{"usage":{"output_tokens":"1"}}}`))
	f.Add([]byte(`{"\"":1,"usage":{"\\":[1,{"usage":2}]}}`))
	f.Add([]byte(`}]{[,:"\u`))
	f.Fuzz(func(t *testing.T, text []byte) {
		all := scan(text)
		for _, n := range all {
			require.GreaterOrEqual(t, n.value, int64(0))
			require.LessOrEqual(t, n.value, int64(maxNumber))
		}
		var decoded struct {
			Usage struct {
				In *json.Number `json:"input_tokens"`
			} `json:"usage"`
		}
		if json.Unmarshal(text, &decoded) != nil || decoded.Usage.In == nil {
			return
		}
		// The decoder matches names in any case, and takes the last of several.
		in, err := decoded.Usage.In.Int64()
		if err != nil || in < 0 || in > maxNumber {
			return
		}
		ok := false
		for _, n := range all {
			ok = ok || n.value == in
		}
		require.True(t, ok, "%d is missing in %v of %q", in, all, text)
	})
}
