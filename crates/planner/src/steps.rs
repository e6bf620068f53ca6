//! What a tree of joins costs.

use crate::{
    CostModel, Estimate, JoinKind, JoinWork, Node, RelationSet, Size, cost::sound, estimate::Estimates,
    hypergraph::Hypergraph, operator::Input,
};

/// The joins of a tree in post-order, as far as costs depend on them.
pub struct Steps(Vec<Step>);

struct Step {
    kind: JoinKind,
    hashed: bool,
    left: Input,
    right: Input,
    relations: RelationSet,
}

impl Steps {
    pub fn of(graph: &Hypergraph, root: &Node) -> Self {
        let mut steps = Self(vec![]);
        steps.add(graph, root);
        steps
    }

    fn add(&mut self, graph: &Hypergraph, node: &Node) -> (Input, RelationSet) {
        match node {
            Node::Leaf(relation) => (Input::Relation(*relation), RelationSet::single(*relation)),
            Node::Join(join) => {
                let (left, left_relations) = self.add(graph, &join.left);
                let (right, right_relations) = self.add(graph, &join.right);
                let hashes = |&number: &usize| graph.region.predicates[number].hashes(left_relations, right_relations);
                let hashed = join.predicates.iter().any(hashes);
                let relations = left_relations | right_relations;
                self.0.push(Step { kind: join.kind, hashed, left, right, relations });
                (Input::Join(self.0.len() - 1), relations)
            }
        }
    }

    /// Size and cost of each join.
    pub fn estimates(&self, estimates: &Estimates, model: &dyn CostModel) -> Vec<Estimate> {
        let (mut scratch, mut found): (_, Vec<Estimate>) = (vec![], Vec::with_capacity(self.0.len()));
        for step in &self.0 {
            let input = |input| match input {
                Input::Relation(relation) => estimates.relation(relation),
                Input::Join(join) => Size { rows: found[join].rows, width: found[join].width },
            };
            let (build, probe) = (input(step.left), input(step.right));
            let output = estimates.size(step.relations, &mut scratch);
            let work = JoinWork { kind: step.kind, hashed: step.hashed, build, probe, output };
            found.push(Estimate { rows: output.rows, width: output.width, cost: sound(model.cost(&work)) });
        }
        found
    }

    /// The cost of all joins.
    pub fn cost(&self, estimates: &Estimates, model: &dyn CostModel) -> f64 {
        self.estimates(estimates, model).iter().map(|estimate| estimate.cost).sum()
    }
}
