"""The app of a site: EPISODE trains the model, and Flower evaluates it."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_sites.task import Net, evaluate, load_data, loss
from episode.flower import attach

app = ClientApp()
attach(app, model_fn=Net, data_fn=load_data, loss=loss)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    """Evaluate the model on this site's test data, as in any Flower project."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_data(context, "test")
    metrics = MetricRecord({**evaluate(model, data), "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
