package testkit

import "github.com/caisson-run/caisson/domain"

// EgressDomains reads domains that a test has written right.
func EgressDomains(texts ...string) []domain.EgressDomain {
	list := make([]domain.EgressDomain, 0, len(texts))
	for _, text := range texts {
		d, err := domain.ParseEgressDomain(text)
		if err != nil {
			panic(err)
		}
		list = append(list, d)
	}
	return list
}
